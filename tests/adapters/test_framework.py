"""What all adapters of frameworks share: the check of the installed version, and the contract."""

from importlib import metadata

import pytest
import torch
from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from torchloom_threadlet.adapters import framework
from torchloom_threadlet.adapters.random_states import draw_nothing_on_resume
from torchloom_threadlet.checkpoint.state import random_states, set_random_states


def test_a_missing_or_old_framework_gives_one_line_that_says_what_to_install(monkeypatch):
    def version(distribution):
        if distribution == "old":
            return "2.4.9rc1+cpu"
        raise metadata.PackageNotFoundError(distribution)

    monkeypatch.setattr(framework.metadata, "version", version)
    with pytest.raises(ImportError) as missing:
        framework.require("lightning", "2.5", "lightning", "pytorch-lightning")
    with pytest.raises(ImportError) as old:
        framework.require("lightning", "2.5", "lightning", "old")
    framework.require("lightning", "2.4", "old")
    assert [str(error.value) for error in (missing, old)] == [
        "torchloom_threadlet.adapters.lightning: need lightning >= 2.5, which is not installed: "
        "pip install 'torchloom[lightning]'",
        "torchloom_threadlet.adapters.lightning: need old >= 2.5, was 2.4.9rc1+cpu: "
        "pip install 'torchloom[lightning]'",
    ]


def batches(count, at=None, states=None):
    """Train on three epochs of five batches; stop after ``count``, or go on from states."""
    torch.manual_seed(5)
    data = torch.arange(10)
    loader = StatefulDataLoader(data, batch_size=2, sampler=DistributedSampler(data, 1, 0))
    draw_nothing_on_resume(loader)
    if states is not None:
        loader.load_state_dict(states[0])
        set_random_states(states[1])
    done = []
    while len(done) < count:
        for batch in loader:
            done.append((batch.tolist(), torch.rand(1).item()))
            if len(done) == at:
                states = loader.state_dict(), random_states()
            if len(done) == count:
                break
    return done, states


@pytest.mark.filterwarnings("ignore:.set_vital. is deprecated")
@pytest.mark.parametrize("position", range(1, 13))
def test_random_numbers_go_on_after_a_restart_at_any_batch_of_an_epoch(position):
    alone, states = batches(14, position)
    assert batches(14 - position, states=states)[0] == alone[position:]
