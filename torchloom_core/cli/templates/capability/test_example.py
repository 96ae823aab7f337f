"""Install the package first: ``pip install -e .``."""

from torchloom_example import Example, RequestExample
from torchloom_example.trainer import ExamplePart

from torchloom_core.testing import CapabilityContract
from torchloom_threadlet.testing import TrainerCapabilityContract


class TestContract(CapabilityContract):
    actions = (RequestExample(worker="g0-0"), RequestExample(worker="lost"))
    arguments = ("g0-0",)


class TestTrainersPart(TrainerCapabilityContract):
    part = ExamplePart
    operation = Example()
