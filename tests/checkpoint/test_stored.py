"""A checkpoint loads as it was saved; a damaged one is found, and the one before it is used."""

import hashlib
import random
import shutil

import msgspec
import pytest
import torch
import torch.distributed.checkpoint as dcp
from msgspec.structs import replace
from torch import nn

from tests.checkpoint.states import digest, load, save, trained
from torchloom_core.checkpoints.layout import MANIFEST, Folder, Manifest, Shard, manifest_json
from torchloom_core.checkpoints.storage import LocalFolder
from torchloom_core.checkpoints.stored import Checkpoint, complete_folders
from torchloom_core.floor.errors import CheckpointError
from torchloom_threadlet.checkpoint.dcp_reader import CheckpointReader


def only(folder):
    """Return the one checkpoint's folder."""
    (found,) = (path for path in folder.iterdir() if path.is_dir())
    return found


def test_all_parts_come_back_to_the_bit(tmp_path):
    parts = trained()
    save(tmp_path, parts, step=7)
    expected, drawn = digest(*parts), torch.rand(1)
    others = trained(seed=1, steps=0)
    restored = load(tmp_path, others)
    assert (restored.folder.step, restored.is_newest) == (7, True)
    assert digest(*others) == expected
    assert torch.rand(1) == drawn


def test_ranks_of_one_model_save_each_tensor_once_and_any_number_loads_it(tmp_path):
    parts = trained()
    for rank in range(3):
        save(tmp_path, parts, rank=rank, ranks=3)
    checkpoint = Checkpoint([LocalFolder(tmp_path)], only(tmp_path).name)
    names = [piece.name for shard in checkpoint.shards for piece in shard.pieces]
    assert len(names) == len(set(names))
    assert all(len(shard.pieces) > 3 for shard in checkpoint.shards)
    others = trained(seed=1, steps=0)
    load(tmp_path, others)
    assert digest(*others) == digest(*parts)


def test_every_flipped_bit_is_found(tmp_path):
    model, *_ = parts = trained()
    save(tmp_path, parts, step=1)
    expected = digest(*parts)
    save(tmp_path, trained(steps=5), step=2)
    newest = max(path for path in tmp_path.iterdir() if path.is_dir())
    rng = random.Random(3)
    for _ in range(20):
        file = rng.choice([path for path in newest.iterdir() if path.suffix in (".bin", ".json")])
        data = bytearray(file.read_bytes())
        checkpoint = Checkpoint([LocalFolder(tmp_path)], newest.name)
        covered = [p for p in checkpoint.shards[0].pieces if p.bytes]
        at = rng.randrange(len(data))
        if file.suffix == ".bin":  # gaps between tensors have no content
            piece = rng.choice(covered)
            at = piece.at + rng.randrange(piece.bytes)
        data[at] ^= 1 << rng.randrange(8)
        good = file.read_bytes()
        file.write_bytes(data)
        others = trained(seed=1, steps=0)
        restored = load(tmp_path, others)
        assert (restored.folder.step, restored.is_newest) == (1, False), (file.name, at)
        assert digest(*others) == expected
        file.write_bytes(good)
    assert digest(model) == expected[:1]


def test_a_checkpoint_of_format_1_loads_and_its_flipped_bit_is_found(tmp_path):
    parts = trained()
    save(tmp_path, parts)
    folder = only(tmp_path)
    data = (folder / "rank-0.bin").read_bytes()
    shard = msgspec.json.decode((folder / "rank-0.json").read_bytes(), type=Shard)
    pieces = [
        replace(piece, xxh3="", sha256=hashlib.sha256(data[piece.at : piece.end]).hexdigest())
        for piece in shard.pieces
    ]
    described = msgspec.json.encode(replace(shard, pieces=tuple(pieces)))
    (folder / "rank-0.json").write_bytes(described)
    manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    [file] = manifest.shards
    file = replace(file, sha256=hashlib.sha256(described).hexdigest())
    (folder / MANIFEST).write_bytes(manifest_json(replace(manifest, format=1, shards=(file,))))
    others = trained(seed=1, steps=0)
    load(tmp_path, others)
    assert digest(*others) == digest(*parts)
    flipped = bytearray(data)
    flipped[pieces[0].at] ^= 1
    (folder / "rank-0.bin").write_bytes(flipped)
    with pytest.raises(CheckpointError, match="its bytes have changed"):
        load(tmp_path, others)


@pytest.mark.parametrize("file", ["rank-0.bin", "rank-0.json", MANIFEST])
@pytest.mark.parametrize("what", ["truncated", "missing", "empty"])
def test_a_damaged_file_is_one_line_and_nothing_is_half_loaded(tmp_path, file, what):
    save(tmp_path, trained())
    path = only(tmp_path) / file
    data = path.read_bytes()
    path.unlink()
    if what != "missing":
        path.write_bytes(data[: len(data) // 2] if what == "truncated" else b"")
    others = trained(seed=1)
    before = digest(*others)
    if (file, what) == (MANIFEST, "missing"):
        assert load(tmp_path, others) is None  # it was never complete
    else:
        with pytest.raises(CheckpointError) as refused:
            load(tmp_path, others)
        assert "\n" not in str(refused.value)
        assert str(tmp_path) in str(refused.value)
    assert digest(*others) == before


@pytest.mark.parametrize(
    ("other", "need"),
    [
        (lambda: nn.Linear(4, 3), "need the shape (3, 4)|it has no|the model has no"),
        (lambda: nn.Sequential(nn.Linear(4, 8)), "the model has no"),
        (lambda: trained(width=9)[0], "need the shape"),
        (lambda: trained()[0].to(torch.bfloat16), "need torch.bfloat16, was torch.float32"),
    ],
)
def test_another_models_checkpoint_is_refused(tmp_path, other, need):
    save(tmp_path, trained()[:1])
    with pytest.raises(CheckpointError) as refused:
        load(tmp_path, [other()])
    assert any(text in str(refused.value) for text in need.split("|"))


def test_the_newest_ones_stay_and_unfinished_older_ones_go(tmp_path):
    for saved in range(1, 6):
        save(tmp_path, trained(), step=saved, keep=0)
    for unfinished in (4, 9):
        (tmp_path / str(Folder(1, unfinished, "f" * 8))).mkdir()
    save(tmp_path, trained(), step=6, keep=2)
    left = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert [int(name.split("-")[2]) for name in left] == [5, 6, 9]


def test_the_first_of_each_span_of_time_stays_too(tmp_path, monkeypatch):
    hours = iter((0.0, 0.4, 1.2, 1.9, 2.1, 2.2))
    monkeypatch.setattr("time.time_ns", lambda: round(next(hours) * 3600e9))
    for step in range(6):
        save(tmp_path, trained(steps=1), step=step, keep=1, keep_every_s=3600.0)
    assert [folder.step for folder in complete_folders(LocalFolder(tmp_path))] == [5, 4, 2, 0]


def test_a_later_generation_is_newer_than_a_larger_step(tmp_path):
    save(tmp_path, trained(), step=90, generation=1)
    save(tmp_path, trained(), step=60, generation=2)
    assert [folder.step for folder in complete_folders(LocalFolder(tmp_path))] == [60, 90]


def test_a_later_versions_checkpoint_is_refused_by_its_format(tmp_path):
    save(tmp_path, trained())
    path = only(tmp_path) / MANIFEST
    manifest = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode(manifest | {"format": 99}))
    with pytest.raises(CheckpointError, match="need format <= 2, was 99"):
        load(tmp_path, trained())


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torchs_own_loader_reads_it(tmp_path):
    model, *_ = parts = trained()
    save(tmp_path, parts)
    checkpoint = Checkpoint([LocalFolder(tmp_path)], only(tmp_path).name)
    state = {"model": trained(seed=1)[0].state_dict()}
    dcp.load(state, storage_reader=CheckpointReader(checkpoint), no_dist=True)
    assert all(torch.equal(state["model"][name], own) for name, own in model.state_dict().items())


def test_two_savers_do_not_share_a_place(tmp_path):
    one, other = LocalFolder(tmp_path), LocalFolder(tmp_path)
    assert one.lock("pid 1 on a") == ""
    assert other.lock("pid 2 on b") == "pid 1 on a"
    one.unlock()
    assert other.lock("pid 2 on b") == ""
    shutil.rmtree(tmp_path)
