"""A checkpoint of a script with other parts is refused in one line, and nothing is changed."""

import copy

import pytest
import torch
from torch import nn

from tests.checkpoint.states import digest, load, save, trained
from torchloom_core.floor.errors import CheckpointError
from torchloom_threadlet.checkpoint.state import TrainingState


class Loader:
    """Has the state that torchdata's loader has with so many workers."""

    def __init__(self, num_workers):
        self.num_workers = num_workers

    def __iter__(self):
        return iter(())

    def state_dict(self):
        main = {"_snapshot": {"_main_snapshot": {"_num_workers": self.num_workers}}}
        return main if self.num_workers else {"_num_yielded": 4}

    def load_state_dict(self, state):
        assert state == self.state_dict()


@pytest.mark.parametrize(
    ("saved", "now"),
    [
        (0, 2),
        pytest.param(2, 3, marks=pytest.mark.long),
        pytest.param(2, 0, marks=pytest.mark.long),
    ],
)
def test_another_number_of_loader_workers(tmp_path, saved, now):
    save(tmp_path, [*trained(), Loader(saved)])
    load(tmp_path, [*trained(), Loader(saved)])
    others = trained(seed=1)
    before = digest(*others)
    with pytest.raises(CheckpointError, match=f"loader: need num_workers={saved}, was {now}"):
        load(tmp_path, [*others, Loader(now)])
    assert digest(*others) == before


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        (lambda weights: [{"params": weights[:2]}, {"params": weights[2:]}], "need 2 parameter gr"),
        (lambda weights: weights[:-1], r"in group 0, was other: 2\.bias"),
        (lambda weights: weights[::-1], "in group 0, was other: another order"),
    ],
)
def test_other_parameter_groups(tmp_path, groups, text):
    save(tmp_path, trained()[:2])
    model = trained(seed=1)[0]
    optimizer = torch.optim.AdamW(groups(list(model.parameters())))
    before = digest(model)
    with pytest.raises(CheckpointError, match=text):
        load(tmp_path, [model, optimizer])
    assert digest(model) == before


def test_a_copy_of_a_model_has_names_of_its_own(tmp_path):
    model, optimizer, _ = trained()
    mean = torch.optim.swa_utils.AveragedModel(copy.deepcopy(model))
    parts = [model, optimizer, mean]
    state = TrainingState(parts)
    assert {"model.0.weight", "model2.module.0.weight"} <= state.steady()
    assert state.steady() <= set(state.gather(0).tensors)
    save(tmp_path, parts)
    other, of_other, _ = trained(seed=1)
    others = [other, of_other, torch.optim.swa_utils.AveragedModel(copy.deepcopy(other))]
    load(tmp_path, others)
    assert digest(*others) == digest(model, optimizer, mean)


def test_an_optimizer_that_each_rank_has_a_part_of_is_refused():
    sharded = type("ZeroRedundancyOptimizer", (torch.optim.SGD,), {})
    model = nn.Linear(1, 1)
    with pytest.raises(CheckpointError, match="was ZeroRedundancyOptimizer"):
        TrainingState([model, sharded(model.parameters())])
