from contextlib import contextmanager

from torchloom_example import ExampleAdapter

from torchloom_threadlet import attach
from torchloom_threadlet.testing import AdapterContract, Rank


class TestContract(AdapterContract):
    agrees = False  # its ranks cannot make a change at one step

    @contextmanager
    def ranks(self, count):
        looms = [attach(group=f"g{rank}", adapter=ExampleAdapter()) for rank in range(count)]
        yield [Rank(loom, loom.step) for loom in looms]
