import fcntl
import os
from pathlib import Path

import pytest

from torchloom_core.floor.atomic_folder import AtomicFolder, clear_abandoned


@pytest.fixture
def old(tmp_path):
    folder = tmp_path / "place"
    folder.mkdir()
    (folder / "old").touch()
    return folder


@pytest.fixture
def draft(old):
    draft = AtomicFolder(old)
    (draft.folder / "new").touch()
    return draft


def test_a_finished_folder_replaces_the_old_one(draft, old):
    draft.put_in_place(replace=True)
    assert [path.name for path in old.iterdir()] == ["new"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_interrupted_replacement_leaves_the_old_folder(draft, old, error, monkeypatch):
    rename, moved = Path.rename, []

    def interrupted(path, target):
        moved.append(path)
        if len(moved) == 2:
            raise error
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(error):
        draft.put_in_place(replace=True)
    assert [path.name for path in old.iterdir()] == ["old"]


def test_an_interrupt_after_it_is_in_place_takes_nothing_back(draft, old, monkeypatch):
    rename = Path.rename

    def interrupted(path, target):
        rename(path, target)
        if path == draft.folder:
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        draft.put_in_place(replace=True)
    assert [path.name for path in old.iterdir()] == ["new"]


@pytest.fixture
def place(tmp_path):
    return tmp_path / "[a] b.tltrace"


def left_behind(place):
    """Return a draft whose writer was killed: its lock has ended with it."""
    draft = AtomicFolder(place)
    (draft.folder / "half").touch()
    os.close(draft._lock)
    return draft


def test_the_draft_of_a_killed_writer_is_removed_by_the_next_at_that_path(place, caplog):
    left_behind(place)
    left_behind(place.with_name("other.tltrace"))
    after = AtomicFolder(place)
    after.put_in_place(replace=False)
    after.discard()
    other, whole = sorted(place.parent.iterdir())
    assert other.name.startswith(".other.tltrace.draft-")
    assert whole == place
    assert [*whole.iterdir()] == []
    (line,) = caplog.messages
    assert line == f"{place}: removed the draft of a killed process"


def test_a_draft_of_a_running_writer_is_left_alone(place):
    first, second = AtomicFolder(place), AtomicFolder(place)
    for draft in (first, second):
        (draft.folder / "half").touch()
        draft.discard()
    assert [*place.parent.iterdir()] == []


def test_a_folder_moved_away_by_a_killed_writer_is_restored(place, caplog):
    place.mkdir()
    (place / "old").touch()
    draft = left_behind(place)
    place.rename(draft.folder.with_name("replaced"))
    again = AtomicFolder(place)
    again.discard()
    assert [path.name for path in place.parent.iterdir()] == [place.name]
    assert [path.name for path in place.iterdir()] == ["old"]
    assert "restored: " in caplog.text


def test_a_draft_removed_before_it_is_locked_is_made_again(place, monkeypatch):
    flock = fcntl.flock

    def cleared_before(handle, how):
        monkeypatch.setattr(fcntl, "flock", flock)
        clear_abandoned(place)
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", cleared_before)
    draft = AtomicFolder(place)
    assert draft.folder.is_dir()


def test_a_folder_created_meanwhile_is_not_replaced_without_replace(place):
    first, second = AtomicFolder(place), AtomicFolder(place)
    for draft in (first, second):
        (draft.folder / "whole").write_text(draft.folder.parent.name)
    first.put_in_place(replace=False)
    with pytest.raises(OSError, match="not empty"):
        second.put_in_place(replace=False)
    assert (place / "whole").read_text() == first.folder.parent.name
