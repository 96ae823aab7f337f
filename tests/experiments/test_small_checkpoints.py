import json
from pathlib import Path

import pytest

from experiments.small_checkpoints.run import MOST_CHANGE, MOST_RATIO, summary
from experiments.small_checkpoints.training import SMALL, Outcome

HERE = Path(__file__).parents[2] / "experiments" / "small_checkpoints"


def test_the_page_and_the_bars_agree_with_the_results():
    page = (HERE / "README.md").read_text(encoding="utf-8")
    arms = json.loads((HERE / "results.json").read_text(encoding="utf-8"))["arms"]
    [small] = [arm for arm in arms if arm["arm"] == SMALL]
    worst = small["changes"]["60"]["worst"]
    assert small["ratio"] <= MOST_RATIO
    assert abs(worst) <= MOST_CHANGE
    assert f"| small | {small['ratio']:.3f}".replace("0.", ".") in page
    assert f"{worst:+.5f} |".replace("0.", ".", 1) in page


def test_the_worst_seed_is_the_one_farthest_from_no_change():
    outcomes = [Outcome(0.2, {60: change}) for change in (0.1, -0.3, 0.2)]
    found = summary(outcomes, 60)
    assert found["worst"] == -0.3
    assert found["mean"] == pytest.approx(0.0)
