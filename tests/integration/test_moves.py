"""Moves of replica groups under torchLoom's own lighthouse, also with a failure meanwhile."""

import os
import signal
import time

import pytest

from tests.deadlines import DEADLINE_S
from tests.integration.moves import CONFIG, Moves

pytestmark = [pytest.mark.integration, pytest.mark.long]


@pytest.fixture(scope="module")
def moves(start_run, until):
    run = start_run(CONFIG)
    run.start_weaver()
    moves = Moves(run, until)
    moves.start("g0", "g1")
    moves.start("g2", "g3", standby=True)
    run.training("g0", "g1")
    moves.in_state("standby", "g2", "g3")
    moves.began_s = time.time()  # how they joined is not tested here
    yield moves
    moves.close()


def test_a_migration_continues_although_the_lighthouse_is_killed_while_the_standby_joins(moves):
    trainer = moves.run.trainers["g2"][0]
    trainer.hold.touch()
    moves.migrate("g1")
    moves.until(lambda: moves.run.worker("g2-0")["state"] == "joining")
    pid = moves.lighthouse["pid"]
    os.kill(pid, signal.SIGKILL)
    trainer.hold.unlink()
    moves.until(lambda: moves.lighthouse["pid"] != pid)
    moves.is_done("g1")
    moves.run.training("g0", "g2")


def test_a_trainer_started_again_on_the_node_it_was_moved_from_is_not_wanted_there(moves):
    moves.ask(kind="cordon", node="node-g1")
    (first,) = moves.run.trainers["g1"]
    assert first.process.wait(DEADLINE_S) == 0
    steps = len(first.rows)
    (again,) = moves.start("g1", TORCHELASTIC_RESTART_COUNT="1")  # as torchrun starts it again
    assert again.process.wait(DEADLINE_S) == 0
    errors = (moves.run.folder / "g1.err").read_text()
    assert "g1-0 is not readmitted: node node-g1 is cordoned" in errors
    assert len(again.rows) == steps


def test_two_groups_move_at_once(moves):
    moves.start("g4", standby=True)
    moves.in_state("standby", "g3", "g4")
    moves.migrate("g0")
    moves.migrate("g2")
    moves.is_done("g0")
    moves.is_done("g2")
    moves.run.training("g3", "g4")


def test_the_last_group_moves(moves):
    moves.ask(kind="drain", group="g4")
    moves.until(lambda: moves.run.worker("g4-0")["state"] in ("left", "gone"))
    moves.start("g5", standby=True)
    moves.in_state("standby", "g5")
    moves.migrate("g3")
    moves.is_done("g3")
    moves.run.training("g5")
    moves.run.trainers["g5"][0].goes_on()


def test_no_step_failed_and_none_was_missed_in_all_of_this(moves):
    steps = []
    for trainers in moves.run.trainers.values():
        for trainer in trainers:
            rows = [row for row in trainer.rows if row["t"] > moves.began_s]
            assert all(row["committed"] for row in rows), trainer.errors
            steps += [row["step"] for row in rows]
    numbers = sorted(set(steps))
    assert numbers == list(range(numbers[0], numbers[-1] + 1))


def test_every_act_of_steering_has_its_reason_on_record(moves):
    for _, body in moves.run.records("steer"):
        assert body["reason"]
    ids = [body["quorum_id"] for _, body in moves.run.records("lighthouse")]
    assert ids == sorted(ids)
