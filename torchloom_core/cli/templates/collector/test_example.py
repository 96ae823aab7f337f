from torchloom_example import find_example

from torchloom_core.testing import CollectorContract


class TestContract(CollectorContract):
    find = find_example
