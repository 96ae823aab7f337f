"""Only the newest standby task of the commanded worker is shown."""

import pytest

from tests import pieces
from tests.recorded_epoch import Recorder
from torchloom_core.live.trajectory.landscape import Landscape
from torchloom_core.live.trajectory.preview import Preview
from torchloom_core.live.trajectory.standby_tasks import StandbyTasks, newest_recorded
from torchloom_core.wire.events import Recovered
from torchloom_core.wire.landscape import Line
from torchloom_core.wire.standby_task import End


def note(loss, command="c1.1", worker="v0-0", kind="landscape", share=0.5, piece=None, **more):
    piece = piece or Line(points=((share, loss),))
    return pieces.note(piece, command, kind=kind, worker=worker, points=1, **more)


def issue(standby_tasks, command, worker, verb):
    standby_tasks.add_command(command, worker, 1, verb, f"p{command}")


@pytest.fixture
def landscape():
    return Landscape()


@pytest.fixture
def standby_tasks(landscape):
    standby_tasks = StandbyTasks(landscape, Preview())
    issue(standby_tasks, "c1.1", "v0-0", "survey")
    standby_tasks.take(note(1.0))
    return standby_tasks


def test_the_commanded_worker_is_shown(standby_tasks, landscape):
    assert (landscape.command, landscape.worker, landscape.line) == ("c1.1", "v0-0", {0.5: 1.0})


@pytest.mark.parametrize(
    "forged",
    [
        {"worker": "w9"},
        {"incarnation": 0},
        {"incarnation": 2},
        {"command": "c1.2"},
        {"command": "c1.2", "worker": "w9"},
        {"command": 7},
        {"kind": "preview"},
        {"kind": "step"},
    ],
)
def test_an_unrequested_landscape_is_not_shown(standby_tasks, landscape, forged):
    standby_tasks.take(note(9.0, **forged))
    assert (landscape.line, landscape.version) == ({0.5: 1.0}, 1)


def test_a_command_of_another_verb_is_no_standby_task(standby_tasks, landscape):
    issue(standby_tasks, "c1.2", "v0-0", "set_knob")
    standby_tasks.take(note(9.0, "c1.2"))
    assert landscape.line == {0.5: 1.0}


def test_a_landscape_command_admits_no_preview(standby_tasks):
    preview = standby_tasks._by_note["preview"]
    issue(standby_tasks, "c1.2", "w1", "survey")
    end = End(points=1, seconds=1.0)
    standby_tasks.take(note(0.0, "c1.2", "w1", "preview", piece=end))
    assert preview.version == 0


def test_all_parts_of_a_task_are_shown_despite_commands_in_between(standby_tasks, landscape):
    for command, worker, verb, standby_task in (
        ("c1.2", "v0-0", "survey", "p2"),
        ("c1.3", "v1-0", "rehearse", "p3"),
        ("c1.4", "v2-0", "survey", "p2"),
    ):
        standby_tasks.add_command(command, worker, 1, verb, standby_task)
    standby_tasks.take(note(4.0, "c1.4", "v2-0"))
    standby_tasks.take(note(2.0, "c1.2"))
    assert landscape.worker == "v0-0, v2-0"


def test_an_older_one_is_not_shown_again(standby_tasks, landscape):
    issue(standby_tasks, "c1.2", "w1", "survey")
    standby_tasks.take(note(2.0, "c1.2", "w1"))
    standby_tasks.take(note(9.0))
    assert landscape.line == {0.5: 2.0}


def test_a_cancelled_task_stays_until_another_starts(standby_tasks, landscape):
    issue(standby_tasks, "c1.2", "v0-0", "survey")
    standby_tasks.take(note(3.0))
    assert landscape.line == {0.5: 3.0}


def test_notes_before_their_command_is_known_are_stored(standby_tasks, landscape):
    standby_tasks.take(note(2.0, "c1.2", "w1"))
    issue(standby_tasks, "c1.2", "w1", "survey")
    assert landscape.line == {0.5: 2.0}


def test_a_worker_with_many_notes_displaces_no_others(standby_tasks, landscape):
    standby_tasks.take(note(2.0, "c1.2", "w1"))
    for number in range(1000):
        standby_tasks.take(note(9.0, f"c9.{number}", "w9"))
    issue(standby_tasks, "c1.2", "w1", "survey")
    assert landscape.line == {0.5: 2.0}


def test_an_oversized_piece_is_not_stored(standby_tasks, landscape):
    long = note(2.0, "c1.2", "w1")
    long.fields["piece"] += " " * 70_000
    for _ in range(2):
        standby_tasks.take(long)
        issue(standby_tasks, "c1.2", "w1", "survey")
    assert landscape.line == {0.5: 1.0}


def test_only_the_piece_of_an_early_note_is_stored(standby_tasks):
    long = note(2.0, "c1.2", "w1")
    long.fields["more"] = "x" * 100_000
    standby_tasks.take(long)
    ((stored,),) = standby_tasks._early.values()
    assert stored.fields.keys() == {"command", "points", "of", "piece"}


def test_endless_notes_take_bounded_memory(standby_tasks, landscape):
    for number in range(10_000):
        standby_tasks.take(note(9.0, f"c9.{number}", "w9"))
        issue(standby_tasks, f"c1.{number + 2}", "v0-0", "survey")
    standby_tasks.take(note(2.0, "c1.10001"))
    assert landscape.line == {0.5: 2.0}
    assert sum(map(len, standby_tasks._early.values())) <= 8 * 64
    assert len(standby_tasks._commands) <= 64


def test_a_task_is_not_over_while_one_part_has_sent_nothing(landscape):
    standby_tasks = StandbyTasks(landscape)
    for worker in ("v0-0", "v1-0"):
        standby_tasks.add_command(f"c-{worker}", worker, 1, "survey", "p1")
    for number, worker in enumerate(("v0-0", "v1-0")):
        assert landscape.end is None
        standby_tasks.take(
            note(1.0, f"c-{worker}", worker, piece=End(points=1, seconds=number + 1.0))
        )
    assert landscape.end == End(points=2, seconds=2.0)


def test_one_that_outlived_a_weaver_is_read_from_its_beginning(tmp_path, landscape):
    for epoch in (1, 2):
        recorder = Recorder(tmp_path, epoch)
        recorder.step(Recovered(epoch=epoch))
        if epoch == 1:
            recorder.issue("c1.1", "v0-0", "survey")
        recorder.step(note(float(epoch), share=float(epoch)))
        recorder.writer.close()
    preview = Preview()
    newest_recorded(tmp_path, landscape, preview)
    assert landscape.line == {1.0: 1.0, 2.0: 2.0}
    assert preview.version == 0
