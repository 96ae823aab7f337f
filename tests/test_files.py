import os
from pathlib import Path

import pytest

from torchloom_core.files import put_in_place, write_whole


@pytest.fixture
def draft(tmp_path):
    folder = tmp_path / ".draft" / "whole"
    folder.mkdir(parents=True)
    (folder / "new").touch()
    return folder


@pytest.fixture
def old(tmp_path):
    folder = tmp_path / "place"
    folder.mkdir()
    (folder / "old").touch()
    return folder


def test_what_is_finished_takes_the_place_of_what_was_there(draft, old):
    put_in_place(draft, old)
    assert [path.name for path in old.iterdir()] == ["new"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_what_ends_it_midway_leaves_what_was_there(draft, old, error, monkeypatch):
    rename, moved = Path.rename, []

    def interrupted(path, target):
        moved.append(path)
        if len(moved) == 2:
            raise error
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(error):
        put_in_place(draft, old)
    assert [path.name for path in old.iterdir()] == ["old"]


def test_an_interrupt_after_it_is_in_place_takes_nothing_back(draft, old, monkeypatch):
    rename = Path.rename

    def interrupted(path, target):
        rename(path, target)
        if path == draft:
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        put_in_place(draft, old)
    assert [path.name for path in old.iterdir()] == ["new"]


def test_two_that_write_one_file_at_once_are_not_in_each_others_way(tmp_path, monkeypatch):
    replace = os.replace

    def beside(part, path):  # another process has written the same file meanwhile
        monkeypatch.setattr(os, "replace", replace)
        monkeypatch.setattr(os, "getpid", lambda: 7)
        write_whole(path, b"theirs")
        replace(part, path)

    monkeypatch.setattr(os, "replace", beside)
    write_whole(tmp_path / "run.json", b"ours")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [
        ("run.json", b"ours")
    ]
