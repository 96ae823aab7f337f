import contextlib

import pytest
from torchloom_example import Example

from torchloom_core.plugin import Notice
from torchloom_core.testing import EffectorContract


class TestContract(EffectorContract):
    effector_class = Example
    events = (Notice(kind="fault", text="xid of node n1"),)

    @pytest.fixture(autouse=True)
    def place(self, tmp_path):
        self.folder = tmp_path / "notices"
        self.folder.mkdir()
        self.options = {"folder": str(self.folder)}

    def effects(self):
        return sorted(path.name for path in self.folder.iterdir())

    @contextlib.contextmanager
    def unreachable(self):
        self.folder.rmdir()
        yield
        self.folder.mkdir()
