"""Faults from other sources than workers, and how long faults are stored."""

import pytest

from tests.kernel.runs import (
    START_NS,
    Calls,
    Run,
    active,
    hello,
    make_kernel,
    of,
    only,
    proposal,
)
from torchloom_core.capabilities.cordon import CordonNode
from torchloom_core.capabilities.dump import CollectDump
from torchloom_core.config.schema import Config
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.live.fleet.fault_log import MAX_FAULTS
from torchloom_core.live.kernel.kernel import Kernel
from torchloom_core.live.trajectory.reader import read_epochs
from torchloom_core.live.trajectory.replay import replay
from torchloom_core.live.trajectory.writer import TrajectoryWriter, links_of
from torchloom_core.plugin import NeedFaults
from torchloom_core.wire.capabilities import from_json
from torchloom_core.wire.codec import encode
from torchloom_core.wire.decisions import Issue, Notice, Outcome
from torchloom_core.wire.events import Control, Fault, NodeFault, Recovered, Tick
from torchloom_core.wire.messages import Note

DAY_S = 86_400


class Remembers(Calls):
    """A policy that records the faults of its views, and declares how long it needs them."""

    name = "remembers"

    def __init__(self, memory_s: float = 0.0) -> None:
        super().__init__(self._look, needs=(NeedFaults(memory_s),))
        self.seen: list[str] = []

    def _look(self, view):
        self.seen = [fault.id for fault in view.faults]
        self.faults = view.faults
        return ()


def fault(number: int, ago_s: float = 0.0, **changes) -> NodeFault:
    ts_ns = START_NS - round(ago_s * SECOND_NS)
    fields = {"node": "node-a", "kind": "power", "ts_ns": ts_ns, "id": f"e{number}"}
    return NodeFault(**{**fields, **changes})


def remembering(memory_s: float = 0.0) -> tuple[Run, Remembers]:
    policy = Remembers(memory_s)
    return Run(make_kernel([active("remembers", policy)])), policy


def test_a_fault_of_a_node_without_a_worker_is_seen():
    run, policy = remembering()
    run.feed(hello("a-0"))
    run.feed(fault(1))
    run.feed(fault(2, node="empty-node", fatal=False))
    run.tick()
    assert [(f.worker, f.node, f.kind, f.fatal) for f in policy.faults] == [
        ("", "node-a", "power", True),
        ("", "empty-node", "power", False),
    ]


def test_faults_are_shown_in_the_order_in_which_they_happened():
    run, policy = remembering()
    for number, ago_s in enumerate((5.0, 50.0, 20.0)):
        run.feed(fault(number, ago_s))
    run.tick()
    assert policy.seen == ["e1", "e2", "e0"]


@pytest.mark.parametrize(("memory_s", "seen"), [(0.0, ["e1"]), (10.0 * DAY_S, ["e0", "e1"])])
def test_faults_are_stored_for_a_day_or_as_long_as_a_plugin_needs(memory_s, seen):
    run, policy = remembering(memory_s)
    run.feed(fault(0, 5 * DAY_S))
    run.feed(fault(1, DAY_S - 2))
    run.tick()
    assert policy.seen == seen


def test_a_fault_is_reported_once():
    run, _ = remembering()
    notice = only(Notice, run.feed(fault(1)))
    assert (notice.kind, notice.text) == ("fault", "power of node node-a")
    assert run.feed(fault(1)) == []


def test_a_warning_of_a_worker_is_no_fatal_fault_and_a_hang_is():
    run, policy = remembering()
    run.feed(hello("a-0"))
    for kind in ("fault", "hang", "quorum"):
        run.feed(Note(run="run", worker="a-0", incarnation=1, kind=kind))
    run.exit("a-0")
    run.tick()
    assert [(f.kind, f.fatal) for f in policy.faults] == [
        ("fault", False),
        ("hang", True),
        ("exit", True),
    ]
    assert [n.text for n in of(Notice, run.outputs)][1:3] == ["fault of a-0", "hang of a-0"]


def leave(run: Run) -> Control:
    return from_json(encode(run.kernel.control()), Control)


def test_a_successor_has_the_faults_and_ignores_repeated_ones():
    run, _ = remembering()
    run.feed(hello("a-0"))
    run.feed(fault(1, 9.0))
    run.exit("a-0")
    successor, policy = remembering()
    successor.feed(Recovered(epoch=2, control=leave(run)))
    successor.feed(hello("a-0"))
    successor.exit("a-0")
    assert successor.feed(fault(1, 9.0)) == []
    successor.tick()
    assert policy.seen == ["e1", "a-0/exit:1"]


def test_the_faults_for_a_successor_are_limited():
    run, policy = remembering()
    for number in range(MAX_FAULTS + 5):
        run.feed(fault(number, 5000.0 - number))
    control = leave(run)
    assert len(control.faults) == MAX_FAULTS
    assert control.faults[0].id == "e5"
    assert len(encode(control)) < 500_000
    run.tick()
    assert len(policy.seen) == MAX_FAULTS + 5


def test_a_fault_is_stored_for_the_successor_at_once():
    run, _ = remembering()
    run.feed(hello("a-0"))
    assert not run.stored
    run.feed(fault(1))
    assert list(run.stored) == ["fault.1"]
    run.exit("a-0")
    assert list(run.stored) == ["fault.1", "fault.2"]


def test_a_fault_older_than_all_stored_ones_is_not_stored():
    run, _ = remembering()
    for number in range(MAX_FAULTS + 5):
        run.feed(fault(number, 100.0))
    before = dict(run.stored)
    run.feed(fault(-1, 200.0))
    assert run.stored == before


def cordons_what_failed(view):
    """Propose to cordon the node of the newest fault."""
    wanted = view.faults[-1].node if view.faults else ""
    if wanted and wanted not in view.cordoned:
        yield proposal(CordonNode(node=wanted))


def cordoning() -> Kernel:
    policy = active("calls", Calls(cordons_what_failed))
    return make_kernel([policy], "[arbiter]\nmax_cordoned_share = 1.0")


def test_a_trajectory_with_faults_and_cordons_replays_bit_for_bit(tmp_path):
    left = Control(
        cordoned=("node-z",),
        faults=(Fault(worker="", node="node-y", kind="xid", ts_ns=START_NS - 1, id="e0"),),
    )
    inputs = [Recovered(epoch=2, control=left), hello("a-0"), Tick(), fault(1), Tick(), Tick()]
    kernel, writer = cordoning(), TrajectoryWriter(tmp_path, "run", 2, Config(), {}, START_NS)
    for second, message in enumerate(inputs):
        ts_ns = START_NS + second * SECOND_NS
        writer.event(message, ts_ns, kernel.step(message, ts_ns))
    writer.close()
    assert kernel.fleet.cordons.nodes == {"node-z", "node-y", "node-a"}
    report = replay(read_epochs(tmp_path)[0], lambda record: cordoning())
    assert report.difference is None
    assert report.verdicts == 2
    assert links_of(fault(1)).id == "e1"


def test_the_outcome_of_a_dump_has_the_command_that_shows_it():
    run = Run(make_kernel())
    run.feed(hello("a-0"))
    dump = only(Issue, run.ask(CollectDump(worker="a-0"))).command
    assert only(Outcome, run.ack(dump)).detail == (
        "dump of a-0 recorded, to show it: "
        "torchloom trajectory show --kind note --worker a-0 --json"
    )
