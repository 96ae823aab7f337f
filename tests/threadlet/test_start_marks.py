"""The phases of a trainer's start: contiguous, and counted apart from each other."""

import threading
import time

import pytest

from torchloom_core.wire.messages import Note
from torchloom_core.wire.start_phases import Start, start_in
from torchloom_threadlet.trainer.first_batch import mark_first_batch
from torchloom_threadlet.trainer.phases import Phases
from torchloom_threadlet.trainer.start_marks import StartMarks

AGE_S = 5.0


@pytest.fixture
def reports() -> list[Start]:
    return []


def marks_of(reports: list[Start], *, is_standby: bool = False) -> StartMarks:
    began_ns = time.time_ns() - round(AGE_S * 1e9)
    return StartMarks(began_ns, reports.append, is_standby=is_standby)


def test_the_phases_of_a_start_add_up_to_its_time(reports: list[Start]) -> None:
    began_s = time.monotonic()
    marks = marks_of(reports)
    with marks.phase("restore"), marks.phase("compile"):
        pass
    marks.built()
    with marks.phase("data_loader"):
        pass
    marks.stepped()
    taken_s = time.monotonic() - began_s
    last = reports[-1]
    assert [one.phase for one in reports] == [
        *("build", "restore", "compile", "first_step", "data_loader", "")
    ]
    assert AGE_S <= sum(last.seconds.values()) <= AGE_S + taken_s + 0.01
    assert last.seconds["import"] >= AGE_S


def test_what_a_script_does_before_its_restore_is_no_first_step(reports: list[Start]) -> None:
    marks = marks_of(reports)
    marks.built()
    marks.begin("restore")
    marks.committed()
    assert set(reports[-1].seconds) == {"import", "build", "restore"}


def test_a_start_is_over_at_the_first_committed_step(reports: list[Start]) -> None:
    marks = marks_of(reports)
    marks.awaits_commit = True
    marks.stepped()
    assert reports[-1].phase
    marks.committed()
    marks.committed()
    marks.begin("restore")
    assert [one.phase for one in reports].count("") == 1
    assert not reports[-1].phase


def test_a_copy_of_a_peers_state_in_another_thread_is_no_wait_for_the_quorum(
    reports: list[Start],
) -> None:
    marks = marks_of(reports)
    phases = Phases(marks)
    phases.begin("quorum")
    healing = threading.Thread(target=lambda: (marks.transfer(True), marks.begin("build")))
    healing.start()
    healing.join()
    assert reports[-1].phase == "state_transfer"
    marks.transfer(False)
    phases.end("quorum")
    marks.committed()
    assert set(reports[-1].seconds) >= {"quorum", "state_transfer", "build"}


def test_a_standby_begins_when_it_joins(reports: list[Start]) -> None:
    marks = marks_of(reports, is_standby=True)
    marks.begin("restore")
    assert not reports
    marks.joined()
    marks.end("restore")
    marks.committed()
    assert reports[-1].joined
    assert sum(reports[-1].seconds.values()) < AGE_S


class Loader:
    """A loader whose batches come from an iterator of a class of its own."""

    def __init__(self, batches: object) -> None:
        self.batches = batches

    def __iter__(self) -> object:
        return iter(self.batches)


class Generating(Loader):
    def __iter__(self) -> object:
        yield from self.batches


class Counting:
    def __init__(self) -> None:
        self.number = 0

    def __iter__(self) -> "Counting":
        return self

    def __next__(self) -> int:
        self.number += 1
        if self.number > 2:
            raise StopIteration
        return self.number


@pytest.mark.parametrize("loader", [Loader(Counting()), Generating([1, 2]), Loader([1, 2])])
def test_a_marked_loader_gives_the_same_batches(loader: Loader, reports: list[Start]) -> None:
    kind, marks = type(loader), marks_of(reports)
    mark_first_batch(loader, marks)
    assert isinstance(loader, kind)
    assert list(loader) == [1, 2]
    assert type(loader) is kind
    marks.committed()
    assert "data_loader" in reports[-1].seconds


def test_a_start_is_read_from_its_note_and_anything_else_is_not() -> None:
    start = Start(began_ns=7, phase="restore", joined=False, seconds={"import": 1.5})
    note = Note(run="r", worker="w", incarnation=1, kind="start_phases", fields=start.fields())
    assert start_in(note) == start
    for fields in ({}, {"began_ns": -1}, {"began_ns": 1, "import_s": "long"}):
        assert (
            start_in(Note(run="r", worker="w", incarnation=1, kind=note.kind, fields=fields))
            is None
        )
    assert start_in(Note(run="r", worker="w", incarnation=1, kind="quorum")) is None
