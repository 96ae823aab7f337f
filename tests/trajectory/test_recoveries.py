"""Recoveries put together from a run's messages: complete, unfinished, failed, replaced."""

from array import array
from typing import Any

import pytest

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.live.trajectory.recoveries import Recoveries
from torchloom_core.live.trajectory.recovery_phases import Recovery
from torchloom_core.wire.decisions import CommandStatus
from torchloom_core.wire.messages import Exit, Hello, Note, Telemetry
from torchloom_core.wire.start_phases import Start

BEGIN_S = 1_700_000_000.0
LATENCY_S = 0.002


def ns(seconds: float) -> int:
    return round((BEGIN_S + seconds) * SECOND_NS)


class Run:
    """Messages of workers whose clocks are ``skew_s`` ahead of the Weaver's."""

    def __init__(self, skew_s: float = 0.0) -> None:
        self.recoveries = Recoveries()
        self._skew_s = skew_s

    def send(self, message: Any, at_s: float) -> None:
        self.recoveries.take(message, ns(at_s + LATENCY_S))

    def hello(self, worker: str, number: int, at_s: float, **more: Any) -> None:
        group, _, rank = worker.rpartition("-")
        place = {"group": group, "rank": int(rank), "node": "n0"} | more
        stamp = ns(at_s + self._skew_s)
        self.send(Hello(run="r", worker=worker, incarnation=number, ts_ns=stamp, **place), at_s)

    def train(self, worker: str, number: int, at_s: float, *step_times_s: float) -> None:
        stamps = [ns(at_s + self._skew_s)] * len(step_times_s)
        batch = Telemetry(
            **{"run": "r", "worker": worker, "incarnation": number, "seq": 1},
            **{"state": "training", "step": 40, "progress_age_s": 0.5},
            metrics=("step_time_s",) if step_times_s else (),
            ts_ns=array("q", stamps).tobytes(),
            values=array("d", step_times_s).tobytes(),
        )
        self.send(batch, at_s)

    def exit(
        self, worker: str, number: int, at_s: float, status: int = -9, late_s: float = 0
    ) -> None:
        stamp = ns(at_s + self._skew_s)
        expected = status in (0, -15)
        message = Exit(
            **{"run": "r", "worker": worker, "incarnation": number, "status": status},
            **{"expected": expected, "step": 40, "ts_ns": stamp},
        )
        self.send(message, at_s + late_s)

    def start(
        self, worker: str, number: int, began_s: float, phase: str = "", joined: bool = False,
        **seconds: float,
    ) -> None:  # fmt: skip
        now_s = began_s + sum(seconds.values())
        stamp = ns(began_s + self._skew_s)
        fields = Start(began_ns=stamp, phase=phase, joined=joined, seconds=seconds).fields()
        note = Note(
            **{"run": "r", "worker": worker, "incarnation": number, "kind": "start_phases"},
            **{"fields": fields, "ts_ns": ns(now_s + self._skew_s)},
        )
        self.send(note, now_s)

    def command(self, worker: str, verb: str, at_s: float) -> None:
        status = CommandStatus(command="c1", worker=worker, status="issued", verb=verb, cause="p1")
        self.send(status, at_s)

    def trained(self, *workers: str) -> None:
        for worker in workers:
            self.hello(worker, 1, 0)
            self.train(worker, 1, 99.5, 0.5)

    def all(self, as_of_s: float | None = None) -> list[Recovery]:
        return list(self.recoveries.found(None if as_of_s is None else ns(as_of_s)))


def rounded(recovery: Recovery) -> dict[str, float]:
    return {name: round(seconds, 1) for name, seconds in recovery.phases.items()}


@pytest.mark.parametrize("skew_s", [0.0, 300.0, -300.0])
def test_a_ranks_recovery_is_divided_into_phases_that_add_up(skew_s: float) -> None:
    run = Run(skew_s)
    run.trained("g0-0")
    run.exit("g0-0", 1, 100, late_s=0.5)
    run.hello("g0-0", 2, 105)
    run.start("g0-0", 2, 102, **{"import": 3.0, "build": 1.0, "restore": 4.0, "first_step": 0.5})
    (one,) = run.all()
    assert rounded(one) == {
        **{"detect": 0.5, "relaunch": 1.5, "import": 3.0, "build": 1.0},
        **{"restore": 4.0, "first_step": 0.5},
    }
    assert sum(one.phases.values()) == pytest.approx(one.total_s)
    assert one.total_s == pytest.approx(10.5, abs=2 * LATENCY_S)
    assert (one.longest, one.phase, one.by, one.step) == ("restore", "", "g0", 40)
    assert one.cause == "g0-0 was killed by SIGKILL after step 40"
    assert "memory_every_s" in one.advice


def test_of_several_ranks_the_one_that_the_others_wait_for_names_the_phase() -> None:
    run = Run()
    run.trained("g0-0", "g0-1")
    run.exit("g0-1", 1, 100)
    run.exit("g0-0", 1, 101, status=-15)
    for worker in ("g0-0", "g0-1"):
        run.hello(worker, 2, 104)
    run.start("g0-0", 2, 103, **{"import": 2.0, "build": 6.0, "restore": 1.0})
    run.start("g0-1", 2, 103, **{"import": 7.0, "build": 1.0, "restore": 1.0})
    (one,) = run.all()
    assert rounded(one) == {"relaunch": 3.0, "import": 7.0, "build": 1.0, "restore": 1.0}
    assert one.cause.startswith("g0-1 was killed")


def test_a_recovery_that_is_not_over_lasts_until_now_in_its_phase() -> None:
    run = Run()
    run.trained("g0-0")
    run.exit("g0-0", 1, 100)
    (one,) = run.all(as_of_s=160)
    assert (one.phase, one.ended_ns, rounded(one)) == ("relaunch", None, {"relaunch": 60.0})
    run.hello("g0-0", 2, 164)
    run.start("g0-0", 2, 163, phase="restore", **{"import": 1.0})
    (one,) = run.all(as_of_s=200)
    assert one.phase == "restore"
    assert rounded(one) == {"relaunch": 63.0, "import": 1.0, "restore": 36.0}


def test_a_second_failure_within_a_recovery_is_a_part_of_it() -> None:
    run = Run()
    run.trained("g0-0", "g0-1")
    run.exit("g0-0", 1, 100)
    run.exit("g0-1", 1, 100.5, status=1)
    for number, worker in enumerate(("g0-0", "g0-1")):
        run.hello(worker, 2, 102)
        run.start(worker, 2, 101, phase="build", **{"import": 1.0})
        run.exit(worker, 2, 105 + number)
    run.start("g0-1", 2, 101, phase="restore", **{"import": 1.0})
    run.hello("g0-0", 3, 108)
    run.start("g0-0", 3, 107, **{"import": 1.0, "first_step": 1.0})
    (one,) = run.all()
    assert one.failed_starts == 1
    assert rounded(one) == {
        **{"failed_starts": 5.0, "relaunch": 2.0, "import": 1.0, "first_step": 1.0}
    }
    run.exit("g0-0", 3, 200)
    assert [one.ended_ns is None for one in run.all()] == [False, True]


def test_a_standby_in_place_of_a_lost_group_ends_its_recovery_and_others_stood_still() -> None:
    run = Run()
    run.trained("g0-0", "g1-0")
    run.hello("s0-0", 1, 50, state="standby", node="n9")
    run.exit("g1-0", 1, 100)
    run.command("s0-0", "join", 103)
    run.start("s0-0", 1, 104, joined=True, **{"quorum": 2.0, "state_transfer": 3.0})
    run.train("g0-0", 1, 108, 8.5)
    (one,) = run.all()
    assert (one.group, one.by, one.nodes) == ("g1", "s0", ("n9",))
    assert rounded(one) == {"decide": 3.0, "join": 1.0, "quorum": 2.0, "state_transfer": 3.0}
    assert one.stood_still_s == pytest.approx(8.0)
    run.train("s0-0", 1, 200, 0.5)
    run.exit("s0-0", 1, 203)
    assert [round(one.total_s) for one in run.all(as_of_s=213)] == [9, 10]


def test_a_standby_that_joins_for_a_silent_group_ends_the_recovery_of_a_lost_node() -> None:
    run = Run()
    run.trained("g0-0", "g1-0")
    run.train("g0-0", 1, 119, 0.5)
    run.hello("s0-0", 1, 50, state="standby")
    run.command("s0-0", "join", 118)
    run.start("s0-0", 1, 119, joined=True, **{"quorum": 2.0})
    (one,) = run.all()
    assert (one.group, one.by, one.cause) == ("g1", "s0", "g1-0 ended without a report")
    assert rounded(one) == {"decide": 18.5, "join": 1.0, "quorum": 2.0}


def test_a_worker_that_hung_was_lost_with_its_last_progress() -> None:
    run = Run()
    run.trained("g0-0")
    run.train("g0-0", 1, 130)
    run.command("g0-0", "terminate", 150)
    run.exit("g0-0", 1, 151)
    (one,) = run.all(as_of_s=151)
    assert rounded(one) == {"detect": 20.5, "relaunch": 1.0}


def test_a_worker_that_returns_without_a_report_of_its_end_was_lost_when_last_heard() -> None:
    run = Run()
    run.trained("g0-0")
    run.hello("g0-0", 2, 120, node="n7")
    run.start("g0-0", 2, 115, **{"import": 5.0})
    (one,) = run.all()
    assert one.cause == "g0-0 ended without a report"
    assert (one.node, one.nodes) == ("n0", ("n7",))
    assert rounded(one) == {"relaunch": 15.5, "import": 5.0}
    run.exit("g0-0", 1, 100, late_s=25)  # as after a restart of the Weaver
    assert rounded(run.all()[0]) == {"detect": 15.0, "import": 5.0}


@pytest.mark.parametrize("status", [0, -15, -2])
def test_an_end_on_purpose_is_no_recovery(status: int) -> None:
    run = Run()
    run.trained("g0-0")
    run.exit("g0-0", 1, 100, status=status)
    assert run.all() == []


def test_a_restart_by_sigterm_is_a_recovery_once_the_worker_is_back() -> None:
    run = Run()
    run.trained("g0-0")
    run.exit("g0-0", 1, 100, status=-15)
    run.hello("g0-0", 2, 104)
    run.start("g0-0", 2, 103, **{"import": 2.0})
    (one,) = run.all()
    assert one.cause == "g0-0 was ended by SIGTERM after step 40"


def test_damaged_and_foreign_messages_are_ignored() -> None:
    run = Run()
    run.exit("unknown-0", 1, 5)
    run.start("unknown-0", 1, 5)
    run.train("unknown-0", 1, 5, 0.5)
    run.trained("g0-0")
    run.send(Note(run="r", worker="g0-0", incarnation=1, kind="start_phases"), 100)
    run.start("g0-0", 7, 100)
    assert run.all() == []


def test_a_start_that_begins_after_its_report_ends_no_other_worker() -> None:
    run = Run()
    run.trained("g0-0", "g1-0")
    start = Start(began_ns=2**63 - 1, phase="", joined=True, seconds={}).fields()
    note = Note(run="r", worker="g0-0", incarnation=1, kind="start_phases", fields=start)
    run.send(note, 101)
    assert run.all() == []
