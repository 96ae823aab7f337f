"""What other users, other runs and full disks do to a place harms no run."""

import errno
import fcntl
import os
import shutil
import socket
import subprocess
import sys

import msgspec
import pytest
import torch

from tests.checkpoint.states import load, save, trained
from torchloom_core.checkpoints.layout import (
    MANIFEST,
    Folder,
    Manifest,
    manifest_json,
    read_folder,
)
from torchloom_core.checkpoints.storage import LocalFolder
from torchloom_core.floor.errors import CheckpointError
from torchloom_threadlet.checkpoint import slots as slots_module
from torchloom_threadlet.checkpoint import writer_link
from torchloom_threadlet.checkpoint.batches import Position
from torchloom_threadlet.checkpoint.loop import LoopState
from torchloom_threadlet.checkpoint.node_store import address
from torchloom_threadlet.checkpoint.nodes import Nodes, identity_of
from torchloom_threadlet.checkpoint.restore import restore
from torchloom_threadlet.checkpoint.saving_ranks import SavingRanks
from torchloom_threadlet.checkpoint.slots import Slots
from torchloom_threadlet.checkpoint.sources import Sources
from torchloom_threadlet.checkpoint.state import TrainingState
from torchloom_threadlet.checkpoint.writer.orders import Order
from torchloom_threadlet.checkpoint.writer.storing import Part, forget_unfinished


def test_what_another_user_left_in_shared_memory_stops_no_save(tmp_path, monkeypatch):
    monkeypatch.setattr(slots_module, "_MEMORY", tmp_path)
    (tmp_path / f"torchloom-{os.getuid()}-99999999-x").mkdir()
    Slots(100).remove()


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    target = tmp_path / "precious"
    target.write_text("content")
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / ".saving").symlink_to(target)
    with pytest.raises(OSError, match="symbolic"):
        LocalFolder(tmp_path / "place").lock("me")
    assert target.read_text() == "content"


def test_a_full_disk_is_locked_without_a_name(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    first, second = LocalFolder(tmp_path), LocalFolder(tmp_path)
    assert first.lock("first") == ""
    assert second.lock("second") == "another process"


def test_a_folder_of_another_users_store_is_not_touched(tmp_path, monkeypatch):
    folder = tmp_path / "torchloom-store-0-x"
    folder.mkdir()
    target = tmp_path / "precious"
    target.write_text("content")
    (folder / ".starting").symlink_to(target)
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    with pytest.raises(OSError, match="another user"), address.held(folder, 0.0):
        pass
    assert target.read_text() == "content"


@pytest.mark.integration
def test_reports_of_a_writer_come_through_a_descriptor_above_1023(monkeypatch):
    here, there = socket.socketpair()
    with there:
        high = socket.socket(fileno=fcntl.fcntl(here.detach(), fcntl.F_DUPFD, 1100))
        process = subprocess.Popen([sys.executable, "-c", ""])
        monkeypatch.setattr(writer_link, "start_beside", lambda *_: (process, high))
        link = writer_link.WriterLink(sys.executable, "slots")
        assert list(link.reports()) == []
        there.sendall(
            b'{"slot":0,"tier":"path","generation":1,"step":7,"what":"stored","seconds":0.1}\n'
        )
        assert [report.step for report in link.reports()] == [7]
        link.close()
        process.wait()


def test_after_a_fall_back_the_next_checkpoint_is_newer_than_the_damaged_ones(tmp_path):
    for generation, step in ((1, 85), (2, 238), (2, 281)):
        save(tmp_path, trained(), step=step, generation=generation)
    for path in tmp_path.glob("0002*/rank-0.bin"):
        path.write_bytes(path.read_bytes()[:-1])
    restored = load(tmp_path, trained(seed=1))
    assert restored.folder.step == 85
    assert (restored.newest.generation, restored.newest.step) == (2, 281)


@pytest.mark.parametrize("is_deep", [False, True])
def test_a_manifest_without_shards_or_too_deep_is_passed_over(tmp_path, is_deep):
    save(tmp_path, trained(), step=1)
    newest = save(tmp_path, trained(), step=2)
    path = tmp_path / newest / MANIFEST
    manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    path.write_bytes(manifest_json(msgspec.structs.replace(manifest, shards=())))
    if is_deep:
        path.write_bytes(b"[" * 100_000)
    assert load(tmp_path, trained(seed=1)).folder.step == 1


def test_another_optimizer_is_refused_by_what_it_has(tmp_path):
    model, optimizer, schedule = trained()
    save(tmp_path, (model, optimizer, schedule))
    other = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(other, 2, 0.5)
    with pytest.raises(CheckpointError, match=r"need an optimizer with dampening.*betas"):
        load(tmp_path, (model, other, schedule))


def test_what_an_ended_run_began_to_store_is_removed_before_the_next_is_stored(tmp_path):
    whole = save(tmp_path, trained(), step=1)
    left = save(tmp_path, trained(), step=2, token="1" * 8)
    (tmp_path / left / MANIFEST).unlink()
    mine = save(tmp_path, trained(), step=3, token="2" * 8)
    (tmp_path / mine / MANIFEST).unlink()
    generation, step, token, _ = read_folder(mine)
    order = Order(
        slot=0, tiers=("path",), generation=generation, step=step, token=token, run="", ranks=1,
        rank=0, good="", base="", bytes=0, described=0, owner="",
    )  # fmt: skip
    forget_unfinished(LocalFolder(tmp_path), Part(order, memoryview(b"")))
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {whole, mine}
    assert str(Folder(generation, step, token)) == mine


def test_the_copy_of_a_path_has_another_memory(tmp_path):
    path = LocalFolder(tmp_path / "a")
    identity = identity_of(path)
    assert identity_of(LocalFolder(tmp_path / "a")) == identity
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert identity_of(LocalFolder(tmp_path / "b")) != identity


@pytest.mark.integration
def test_two_runs_with_one_path_do_not_share_the_memory_of_a_node(tmp_path, monkeypatch):
    monkeypatch.setattr(address, "_MEMORY", tmp_path / "memory")
    (tmp_path / "memory").mkdir()
    path = LocalFolder(tmp_path / "run-7")
    first = Nodes(SavingRanks(), "n0", "", path, is_alone=True)
    try:
        assert first.problem == ""
        code = "import sys; sys.stdin.read()"
        with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as other:
            mark = first.folder / address.mark_of(other.pid)
            mark.touch()
            assert "another run" in Nodes(SavingRanks(), "n0", "", path, is_alone=True).problem
            assert Nodes(SavingRanks(), "n0", "", path, is_alone=False).problem == ""
            other.stdin.close()
        assert Nodes(SavingRanks(), "n0", "", path, is_alone=True).problem == ""
    finally:
        record = address.read_record(first.folder)
        os.kill(record.pid, 15)


def test_a_pipe_in_place_of_a_file_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        LocalFolder(tmp_path).open("pipe")


def test_a_run_goes_back_without_asking_the_remote_place(tmp_path):
    class Silent(LocalFolder):
        def folders(self):
            raise AssertionError("it would take a minute")

    path, remote = LocalFolder(tmp_path / "path"), Silent(tmp_path / "remote")
    save(tmp_path / "path", trained(), step=5)
    sources = Sources(path, [[path], [remote]], [path, remote], remote)
    state = TrainingState(trained(seed=1))
    assert restore(sources, state, SavingRanks(), in_training=True).folder.step == 5


def test_a_run_goes_back_to_the_remote_place_if_nothing_nearer_is_whole(tmp_path):
    path, remote = LocalFolder(tmp_path / "path"), LocalFolder(tmp_path / "remote")
    damaged = save(tmp_path / "path", trained(), step=5)
    (tmp_path / "path" / damaged / "rank-0.bin").write_bytes(b"")
    save(tmp_path / "remote", trained(), step=4)
    sources = Sources(path, [[path], [remote]], [path, remote], remote)
    state = TrainingState(trained(seed=1))
    assert restore(sources, state, SavingRanks(), in_training=True).folder.step == 4


def test_slots_in_use_are_not_taken_for_left_overs_and_those_of_the_ended_are(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(slots_module, "_MEMORY", tmp_path)
    used = Slots(100)
    left_over = tmp_path / f"torchloom-{os.getuid()}-1-x"  # of a namespace whose process 1 ended
    left_over.touch()
    other = Slots(100)
    assert {path.name for path in tmp_path.iterdir()} == {used.path.name, other.path.name}
    used.remove()
    other.remove()


def test_how_often_to_save_is_for_the_new_start_to_say():
    class Loom:
        def load_state_dict(self, state):
            self.state = state

    loom = Loom()
    knobs = {"lr": 0.1, "checkpoint_interval_s": 60.0, "upload_bytes_per_s": 1e6}
    LoopState(loom, Position()).load_state_dict({"step": 7, "knobs": knobs})
    assert loom.state == {"step": 7, "knobs": {"lr": 0.1}}
