"""Small checkpoints are stored beside a full one, and load as a rounded state."""

import shutil

import pytest
import torch

from tests.checkpoint.states import digest, load, save, trained
from torchloom_core.checkpoints.layout import Folder, read_folder
from torchloom_core.checkpoints.storage import LocalFolder
from torchloom_core.checkpoints.stored import Checkpoint, complete_folders
from torchloom_core.floor.errors import CheckpointError
from torchloom_threadlet.checkpoint.agreement import Requests, SaveRequests
from torchloom_threadlet.checkpoint.full_ones import EVERY, FullOnes
from torchloom_threadlet.checkpoint.writer.bases import Bases


@pytest.fixture
def place(tmp_path):
    """A folder with a full checkpoint of step 1 and a small one of step 2."""
    bases = Bases()
    base = save(tmp_path, trained(width=300), step=1, bases=bases)
    save(tmp_path, trained(width=300, steps=4), step=2, bases=bases, base=base)
    return tmp_path


def folders(path):
    return sorted(one.name for one in path.iterdir() if one.is_dir())


def size(path, name):
    return (path / name / "rank-0.bin").stat().st_size


def test_a_small_checkpoint_loads_rounded_and_says_so(place, caplog):
    base, small = folders(place)
    model, optimizer, schedule = trained(width=300, steps=4)
    others = trained(width=300, seed=1, steps=0)
    assert load(place, others).folder == Folder(1, 2, "0" * 8, is_exact=False)
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [f"{small} is small: the state is rounded, not the same to the bit"]
    assert Checkpoint([LocalFolder(place)], small).manifest.bytes == size(place, small)
    assert size(place, small) < 0.4 * size(place, base)
    for own, other in zip(model.parameters(), others[0].parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=0.1 / 127)
        ours, theirs = optimizer.state[own], others[1].state[other]
        assert ours["step"] == theirs["step"]
        for key in ("exp_avg", "exp_avg_sq"):
            most = ours[key].abs().max().item()
            torch.testing.assert_close(ours[key], theirs[key], rtol=0.07, atol=most / 60)
    assert torch.equal(model[1].running_mean, others[0][1].running_mean)
    assert digest(schedule) == digest(others[2])


def test_every_byte_of_a_small_checkpoint_has_a_digest(place):
    small = place / folders(place)[1]
    data = bytearray((small / "rank-0.bin").read_bytes())
    data[len(data) // 2] ^= 1
    (small / "rank-0.bin").write_bytes(data)
    with pytest.raises(CheckpointError, match="its bytes have changed"):
        list(Checkpoint([LocalFolder(place)], small.name).verify())


def test_without_its_base_a_small_checkpoint_is_refused_by_one_line(place):
    base, small = folders(place)
    shutil.rmtree(place / base)
    with pytest.raises(CheckpointError, match=r"manifest\.json: it is missing") as refused:
        load(place, trained(width=300, steps=0))
    assert small in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_base_stays_as_long_as_a_small_one_needs_it(place):
    bases = Bases()
    [newest] = [one for one in folders(place) if "0002" in one]
    base = folders(place)[0]
    small = save(place, trained(width=300), step=3, keep=1, bases=bases, base=base)
    assert folders(place) == [base, small]
    assert newest not in folders(place)
    full = save(place, trained(width=300), step=4, keep=1, bases=bases)
    assert folders(place) == [full]


def test_a_writer_that_has_no_base_stores_weights_to_the_bit(tmp_path):
    base = save(tmp_path, trained(), step=1)
    parts = trained(steps=5)
    save(tmp_path, parts, step=2, bases=Bases(), base=base)
    others = trained(seed=1, steps=0)
    load(tmp_path, others)
    assert digest(others[0]) == digest(parts[0])


def test_no_small_checkpoint_is_complete_before_its_base(tmp_path):
    base = str(Folder(1, 1, "f" * 8))
    with pytest.raises(AssertionError):
        save(tmp_path, trained(), step=2, bases=Bases(), base=base)
    assert not complete_folders(LocalFolder(tmp_path))


def test_of_one_step_the_exact_checkpoint_is_newer():
    exact, small = Folder(1, 7, "0" * 8), Folder(1, 7, "0" * 8, is_exact=False)
    assert [read_folder(str(one)) for one in (exact, small)] == [exact, small]
    assert small < exact < Folder(1, 8, "0" * 8, is_exact=False)


def test_every_24th_is_full_and_the_one_after_a_failure():
    full = FullOnes()
    bases = []
    for step in range(2 * EVERY):
        bases.append(full.base_of(str(step)))
        full.is_asked = False
    assert bases == ["", *["0"] * (EVERY - 1), "", *[str(EVERY)] * (EVERY - 1)]
    full.is_needed = True
    full.is_asked = SaveRequests().exchange(Requests((True,), full=full.is_needed)).full
    assert full.base_of("50") == ""
    assert not full.is_needed
