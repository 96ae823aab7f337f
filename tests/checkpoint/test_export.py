"""An export has every tensor to the bit, in files that the format's own library reads."""

import json

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from tests.checkpoint.states import digest, save, trained
from torchloom_core.capabilities.checkpoint.export_command import export_checkpoint
from torchloom_core.checkpoints.storage import LocalFolder
from torchloom_core.checkpoints.stored import Checkpoint, complete_folders
from torchloom_core.floor.errors import CheckpointError
from torchloom_threadlet.checkpoint.exports import safetensors_export

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture
def place(tmp_path):
    return tmp_path / "run-7"


def equal(found, expected):
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_safetensors_have_the_models_weights_of_the_step_that_is_named(place, tmp_path):
    model, *_ = parts = trained()
    for rank in range(3):
        save(place, [*parts, nn.Linear(2, 2, dtype=torch.bfloat16)], rank=rank, ranks=3, step=4)
    save(place, trained(seed=1), step=9)
    export_checkpoint(str(place), tmp_path / "out", step=4)
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert files == ["model.safetensors", "model2.safetensors"]
    equal(load_file(tmp_path / "out" / "model.safetensors"), model.state_dict())
    assert load_file(tmp_path / "out" / "model2.safetensors")["weight"].dtype == torch.bfloat16


def test_a_large_model_is_several_files_and_an_index(place, tmp_path):
    model, *_ = parts = trained(width=64)
    save(place, parts)
    checkpoint = Checkpoint([storage := LocalFolder(place)], str(complete_folders(storage)[0]))
    safetensors_export.export(checkpoint, tmp_path, lambda size: None, largest=600)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_bytes())
    found = {}
    for file in sorted(set(index["weight_map"].values())):
        found |= load_file(tmp_path / file)
    equal(found, model.state_dict())
    assert len(set(index["weight_map"].values())) > 2


def test_stock_dcp_loads_weights_and_optimizer_states(place, tmp_path):
    model, optimizer, _ = parts = trained()
    save(place, parts)
    export_checkpoint(str(place), tmp_path / "out", format="dcp")
    other, of_other, _ = trained(seed=1, steps=1)
    state = dict(zip(["model", "optim"], get_state_dict(other, of_other), strict=True))
    dcp.load(state, checkpoint_id=tmp_path / "out", no_dist=True)
    set_state_dict(
        other, of_other, model_state_dict=state["model"], optim_state_dict=state["optim"]
    )
    assert digest(other, of_other) == digest(model, optimizer)


@pytest.mark.parametrize("kind", ["safetensors", "dcp"])
def test_a_damaged_checkpoint_leaves_no_export(place, tmp_path, kind):
    save(place, trained())
    [folder] = [path for path in place.iterdir() if path.is_dir()]
    data = bytearray((folder / "rank-0.bin").read_bytes())
    data[130] ^= 4
    (folder / "rank-0.bin").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"rank-0\.bin: .*: its bytes have changed"):
        export_checkpoint(str(place), tmp_path / "out", format=kind)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-7"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"step": 3}, "no complete checkpoint at step 3"),
        ({"format": "pickle"}, "--format: need dcp or safetensors, was 'pickle'"),
        ({}, "need a model, has none"),
    ],
)
def test_each_mistake_is_one_line(place, tmp_path, words, text):
    save(place, [trained()[2]])
    with pytest.raises(CheckpointError, match=text):
        export_checkpoint(str(place), tmp_path / "out", **words)
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    with pytest.raises(CheckpointError, match="need a folder that does not exist"):
        export_checkpoint(str(place), tmp_path / "out", **words)
