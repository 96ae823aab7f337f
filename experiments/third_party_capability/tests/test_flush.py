import contextlib

import pytest
from torchloom_core.plugin import Outcome
from torchloom_core.testing import (
    CapabilityContract,
    CollectorContract,
    EffectorContract,
    PolicyContract,
    view_of,
)
from torchloom_threadlet.testing import TrainerCapabilityContract

from torchloom_flush import Flush, FlushCheckpoints
from torchloom_flush.collector import find_unwritten
from torchloom_flush.effector import FlushMarker
from torchloom_flush.policy import FlushWatch
from torchloom_flush.trainer import FlushPart


class TestCapability(CapabilityContract):
    actions = (FlushCheckpoints(), FlushCheckpoints(group="g1"), FlushCheckpoints(group="lost"))
    arguments = ()


class TestTrainersPart(TrainerCapabilityContract):
    part = FlushPart
    operation = Flush()


class TestCollector(CollectorContract):
    find = find_unwritten


class TestPolicy(PolicyContract):
    policy_class = FlushWatch
    options = {"unsaved_s": 50.0}


class TestMarker(EffectorContract):
    effector_class = FlushMarker
    events = (
        Outcome(
            verdict="p1.1",
            policy="person",
            action=FlushCheckpoints(),
            result="done",
            detail="checkpoints of 2 workers on disk",
            took_s=1.0,
        ),
    )

    @pytest.fixture(autouse=True)
    def place(self, tmp_path):
        self.folder = tmp_path / "checkpoints"
        self.folder.mkdir()
        self.options = {"folder": str(self.folder)}

    def effects(self):
        return [path.read_text() for path in self.folder.iterdir()]

    @contextlib.contextmanager
    def unreachable(self):
        self.folder.rmdir()
        yield
        self.folder.mkdir()


def test_a_flush_is_proposed_once_until_the_work_is_saved():
    policy = FlushWatch(FlushWatch.Options(unsaved_s=100.0))
    proposals = [
        [proposal.reason for proposal in policy.on_tick(view)]
        for unsaved_s in (90.0, 110.0, 120.0, 5.0, 101.0)
        for view in [view_of({"unsaved_work_s": [unsaved_s], "unwritten_bytes": [2e9]})]
    ]
    reason = "s of work are not on disk, and up to 2000 MB of a node"
    assert proposals == [[], [f"110 {reason}"], [], [], [f"101 {reason}"]]
