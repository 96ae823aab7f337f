"""A worker long gone gives its row to the next new one, and nothing of it stays."""

import numpy as np
import pytest

from tests.kernel.runs import START_NS, hello, make_kernel, telemetry
from torchloom_core.config.schema import Config, Costs, Weaver
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.live.fleet.state import FleetState
from torchloom_core.plugin import Need, NeedNotes
from torchloom_core.wire.events import Tick
from torchloom_core.wire.links import Link, Measured
from torchloom_core.wire.messages import Exit, Note

HOUR_NS = 3600 * SECOND_NS


@pytest.fixture
def fleet() -> FleetState:
    needs = (Need("loss"), NeedNotes(("slow",)))
    fleet = FleetState(needs, tick_s=1.0, stale_after_s=10.0, costs=Costs(), forget_after_s=3600)
    for worker in ("a-0", "b-0", "c-0"):
        fleet.register(hello(worker), START_NS)
    return fleet


def live_on(fleet: FleetState, *workers: str, at_ns: int) -> None:
    for worker in workers:
        fleet.receive(telemetry(worker, {"loss": 1.0}), at_ns)
    fleet.close_tick(at_ns)


def test_a_new_worker_takes_the_row_of_the_one_silent_for_longest(fleet):
    live_on(fleet, "a-0", at_ns=START_NS + HOUR_NS)
    fleet.end(
        Exit(run="run", worker="c-0", incarnation=1, status=0, expected=True),
        START_NS + 60 * SECOND_NS,
    )
    fleet.register(hello("d-0"), START_NS + HOUR_NS)
    assert fleet.row_of == {"a-0": 0, "b-0": 1, "c-0": 2, "d-0": 3}
    fleet.register(hello("e-0"), START_NS + HOUR_NS + SECOND_NS)
    fleet.register(hello("f-0"), START_NS + 2 * HOUR_NS)
    assert fleet.row_of == {"a-0": 0, "d-0": 3, "e-0": 1, "f-0": 2}
    assert fleet.roster.workers == ("a-0", "e-0", "f-0", "d-0")
    assert fleet.take_forgotten() == ["b-0", "c-0"]
    assert fleet.standing.groups("training") == {"a": [0], "d": [3], "e": [1], "f": [2]}


def test_nothing_of_the_one_before_is_in_its_row(fleet):
    live_on(fleet, "b-0", at_ns=START_NS)
    note = Note(run="run", worker="b-0", incarnation=1, ts_ns=START_NS, kind="slow", fields={})
    fleet.note(note, START_NS)
    measured = Measured(bytes_per_s=1.0, latency_s=1.0)
    ends = {"sender": "b-0", "sender_node": "n", "receiver": "a-0", "receiver_node": "n"}
    fleet.links.add(Link(**ends, measured=measured, ts_ns=START_NS))
    at_ns = START_NS + 2 * HOUR_NS
    live_on(fleet, "a-0", "c-0", at_ns=at_ns)
    fleet.register(hello("d-0"), at_ns)
    view = fleet.view(at_ns, {})
    row = view.workers.index("d-0")
    assert row == 1
    assert view.note("slow", row) is None
    assert not fleet.links.of
    assert np.isnan(view.last_known("loss")[row])
    assert fleet.role_of("b") == ""
    assert fleet.alive("b-0", at_ns) is None
    assert fleet.register(hello("b-0"), at_ns + 2 * HOUR_NS)


def test_a_kernel_with_workers_that_come_and_go_does_not_grow():
    config = Config(weaver=Weaver(forget_after_s=600))
    kernel = make_kernel(config=config)
    rows = []
    for minute in range(200):
        now_ns = START_NS + minute * 60 * SECOND_NS
        kernel.step(hello(f"w{minute}-0"), now_ns)
        kernel.step(Tick(), now_ns)
        rows.append(len(kernel.fleet.hello))
    assert max(rows) == rows[20] <= 12
