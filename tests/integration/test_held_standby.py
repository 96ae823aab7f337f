"""Standbys that wait with a running Manager, as the lighthouse holds them back."""

import logging

import msgspec
import pytest

from tests.deadlines import DEADLINE_S
from tests.integration.moves import CONFIG, Moves
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.live.trajectory.reader import read_epochs
from torchloom_core.wire.steering import name_of_replica

pytestmark = [pytest.mark.integration, pytest.mark.long]

_logger = logging.getLogger(__name__)

NEVER_S = 10 * DEADLINE_S
"""A standby that counts as a member delays each quorum by this time, and fails the test."""


@pytest.fixture(scope="module")
def moves(start_run, until):
    run = start_run(CONFIG.replace("join_timeout_s = 20.0", f"join_timeout_s = {NEVER_S}"))
    run.start_weaver()
    moves = Moves(run, until)
    moves.start("g0", "g1")
    until(lambda: quorum_ids(moves, "g0") & quorum_ids(moves, "g1"))
    yield moves
    moves.close()


@pytest.fixture
def g0(moves):
    return moves.run.trainers["g0"][0]


def held(moves):
    """Return the groups that are held back in the lighthouse's last view."""
    return {name_of_replica(name) for name in moves.run.records("lighthouse")[-1][1]["held"]}


def verbs(moves, group, status="issued"):
    """Return the operations of the group's worker that reached this status, in order."""
    statuses = [body for _, body in moves.run.records("command_status")]
    return [
        record["verb"]
        for record in statuses
        if (record["worker"], record["status"]) == (f"{group}-0", status)
    ]


def quorum_ids(moves, group):
    notes = [body for _, body in moves.run.records("note")]
    return {
        note["fields"]["quorum_id"]
        for note in notes
        if (note["worker"], note["kind"]) == (f"{group}-0", "quorum")
    }


def seconds_to_join(moves, group, to):
    """Return the seconds from the grant to the first step that the standby commits."""
    (outcome,) = moves.outcomes(group)
    lines = [line for record in read_epochs(moves.run.trajectory) for line in record.lines()]
    (granted_ns,) = [
        line.ts_ns
        for line in lines
        if line.kind == "verdict"
        and msgspec.json.decode(line.body)["proposal"] == outcome["verdict"]
    ]
    return moves.run.trainers[to][0].rows[0]["t"] - granted_ns / SECOND_NS


def test_a_prepared_stand_by_is_in_no_quorum_and_changes_none(moves, g0, until):
    before = quorum_ids(moves, "g0")
    moves.start("g2", "g3", standby=True)
    until(lambda: held(moves) == {"g2", "g3"})
    moves.in_state("standby", "g2", "g3")
    g0.goes_on(20)
    assert {row["participants"] for row in g0.rows[-20:]} == {2}
    assert quorum_ids(moves, "g0") == before
    assert verbs(moves, "g2") == ["prepare"]


def test_a_weaver_that_is_killed_and_started_again_changes_nothing_for_it(moves, g0, until):
    before = quorum_ids(moves, "g0")
    moves.run.kill_weaver()
    g0.goes_on(20)
    moves.run.start_weaver()
    moves.in_state("standby", "g2", "g3")
    ((second, _),) = moves.run.records("recovered")[1:]
    until(lambda: [epoch for epoch, _ in moves.run.records("steer") if epoch == second])
    moves.run.ticks(5)
    acts = [body["do"] for epoch, body in moves.run.records("steer") if epoch == second]
    assert acts == [{"act": "hold", "names": ["g2", "g3"]}]
    assert verbs(moves, "g2") == ["prepare"]
    g0.goes_on(20)
    assert quorum_ids(moves, "g0") == before


def test_a_group_moves_to_one_while_another_waits(moves, g0):
    moves.start("u1", standby=True, TEST_UNHELD="1")
    moves.in_state("standby", "u1")
    moves.ask(kind="cordon", node="node-u1")
    moves.migrate("g1")
    moves.is_done("g1")
    assert held(moves) == {"g3"}
    g0.goes_on()
    assert {row["participants"] for row in g0.rows[-5:]} == {2}
    moves.ask(kind="uncordon", node="node-u1")
    moves.ask(kind="cordon", node="node-g3")
    moves.migrate("g2")
    moves.is_done("g2")
    moves.ask(kind="uncordon", node="node-g3")
    assert verbs(moves, "u1") == ["join"]
    for group, to in (("g1", "g2"), ("g2", "u1")):
        _logger.info("%s: %.2f s to its first step", to, seconds_to_join(moves, group, to))


def test_a_join_command_during_the_managers_start_is_carried_out_at_once(moves, until):
    hold = moves.run.folder / "g4.hold"
    hold.touch()
    (trainer,) = moves.start("g4", standby=True)
    until(lambda: verbs(moves, "g4", "applied") == ["prepare"])
    moves.ask(kind="admit", group="g4")
    until(lambda: verbs(moves, "g4", "applied") == ["prepare", "join"])
    assert trainer.rows == []
    hold.unlink()
    moves.run.training("g4")
    trainer.goes_on()


def test_one_that_is_drained_ends_with_status_0_and_the_lighthouse_knows(moves, g0, until):
    assert held(moves) == {"g3"}
    moves.ask(kind="drain", group="g3")
    (trainer,) = moves.run.trainers["g3"]
    assert trainer.process.wait(DEADLINE_S) == 0
    until(lambda: held(moves) == set())
    statuses = (moves.run.folder / "g3.err").read_text()
    assert "standby g3-0 is dismissed: exiting with status 0" in statuses
    g0.goes_on()


def test_no_step_failed_in_all_of_this(moves):
    for trainers in moves.run.trainers.values():
        for trainer in trainers:
            assert all(row["committed"] for row in trainer.rows), trainer.group
