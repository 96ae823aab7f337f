import importlib.util
import json
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parents[2] / "experiments" / "constant_batch"


@pytest.fixture
def experiment():
    specification = importlib.util.spec_from_file_location("constant_batch", HERE / "run.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    module.LOST_AT, module.BACK_AT = 20, 60
    torch.set_num_threads(1)
    return module


def test_a_kept_batch_follows_the_undisturbed_run_and_one_per_group_does_not(experiment):
    undisturbed, kept, per_group = (experiment.train(arm, 0, steps=80) for arm in experiment.ARMS)
    assert kept == pytest.approx(undisturbed, rel=1e-4)
    assert per_group != pytest.approx(undisturbed, rel=0.02)


def test_the_page_says_what_the_results_say():
    page = (HERE / "README.md").read_text(encoding="utf-8")
    arms = json.loads((HERE / "results.json").read_text(encoding="utf-8"))["arms"]
    for figures in arms.values():
        for name in ("loss_ratio_while_alone", "loss_ratio_at_the_end"):
            ratio = "{:.2f} [{:.2f}, {:.2f}]".format(*figures[name])
            assert ratio.replace("0.", ".") in page.replace("0.", ".")
        assert f"{figures['points_of_curves_within_two_seed_sd']:.0%}".replace("%", " %") in page
