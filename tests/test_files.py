import fcntl
import os
import subprocess
import sys
import threading

import pytest

from tests.deadlines import DEADLINE_S
from torchloom_core.floor import files
from torchloom_core.floor.files import write_whole


def test_two_that_write_one_file_at_once_are_not_in_each_others_way(tmp_path, monkeypatch):
    replace, path = os.replace, tmp_path / "run.json"
    other = threading.Thread(target=write_whole, args=[path, b"theirs"], daemon=True)

    def beside(part, path):  # another process starts to write the same file
        monkeypatch.setattr(os, "replace", replace)
        other.start()
        replace(part, path)

    monkeypatch.setattr(os, "replace", beside)
    write_whole(path, b"ours")
    other.join(DEADLINE_S)
    assert not other.is_alive()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"run.json": b"theirs"}


def interrupted_at(step, monkeypatch):
    """Interrupt the next call of a function."""
    owner, name = step
    real = getattr(owner, name)

    def interrupt(*_):
        monkeypatch.setattr(owner, name, real)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, interrupt)


@pytest.mark.parametrize(
    "step", [(fcntl, "flock"), (files, "_is_at"), (os, "replace")], ids=lambda step: step[1]
)
def test_an_interrupt_at_any_step_leaves_nothing(step, tmp_path, monkeypatch):
    interrupted_at(step, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "run.json", b"ours")
    assert not list(tmp_path.iterdir())


def test_a_write_succeeds_although_its_part_file_was_replaced(tmp_path, monkeypatch):
    replace = os.replace

    def beside(part, path):
        replace(part, path)
        part.mkdir()  # which cannot be opened, like another user's file

    monkeypatch.setattr(os, "replace", beside)
    write_whole(tmp_path / "run.json", b"ours")
    assert (tmp_path / "run.json").read_bytes() == b"ours"


def test_an_interrupt_leaves_what_another_writes_to(tmp_path, monkeypatch):
    with (tmp_path / ".run.json.part").open("wb") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        interrupted_at((fcntl, "flock"), monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            write_whole(tmp_path / "run.json", b"ours")
        assert [one.name for one in tmp_path.iterdir()] == [".run.json.part"]


@pytest.mark.integration
def test_the_part_file_of_a_killed_writer_is_removed_by_the_next(tmp_path):
    path = tmp_path / "run.json"
    killed = (
        "import os, pathlib, sys; from torchloom_core.floor.files import write_whole; "
        "os.replace = lambda *_: os.kill(os.getpid(), 9); "
        "write_whole(pathlib.Path(sys.argv[1]), b'half of what is longer')"
    )
    subprocess.run([sys.executable, "-c", killed, path], check=False)
    assert [one.name for one in tmp_path.iterdir()] != []
    write_whole(path, b"whole")
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == {"run.json": b"whole"}
