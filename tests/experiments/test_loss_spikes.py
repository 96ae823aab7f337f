import json
import math
from pathlib import Path

import pytest

from experiments.allreduce import model
from experiments.compression.training import corpus
from experiments.loss_spikes import training
from experiments.loss_spikes.run import behind
from experiments.loss_spikes.training import FAULTS, NO_FAULT, Training, trial

ROOT = Path(__file__).parents[2]
HERE = ROOT / "experiments" / "loss_spikes"


@pytest.fixture(autouse=True)
def short(monkeypatch):
    for name, value in {"STEPS": 190, "FAULT_AT": 105, "BATCH": 32, "CHECKPOINT_STEPS": 50}.items():
        monkeypatch.setattr(training, name, value)
    # What comes with Python is another text in another version, and other steps come of it.
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    monkeypatch.setattr(model, "topics", {"": text})
    corpus.cache_clear()
    yield
    corpus.cache_clear()


def test_a_bit_flip_ruins_a_run_and_the_guard_takes_it_back():
    training = Training("sgd", 0)
    training.run(130)
    alone, guarded = (training.go_wrong("bit flip", o).run(190) for o in (None, {}))
    quiet = training.go_wrong(NO_FAULT, None).run(190)
    assert math.isnan(alone.curve[-1])
    assert guarded.curve[-1] == pytest.approx(quiet.curve[-1], abs=0.3)
    assert guarded.done == ["done: 1 worker rewound at step 100, skipping 148 batches"]


def test_a_trial_has_a_run_of_each_fault_in_each_arm():
    ran = trial("adamw", 2, {"nothing": None})
    assert set(ran) == {(NO_FAULT, ""), *((fault, "nothing") for fault in FAULTS)}
    assert behind(ran["bad stretch", "nothing"], ran[NO_FAULT, ""]) > 0


def test_the_page_says_what_the_results_say():
    page = (HERE / "README.md").read_text(encoding="utf-8")
    results = json.loads((HERE / "results.json").read_text(encoding="utf-8"))
    for row in results["arms"]:
        cells = "{:.0f} [{:.0f}, {:.0f}]".format(row["behind"], *row["behind_interval"])
        assert f"| {row['optimizer']} | {row['fault']} | {row['arm']} | {cells} |" in page
    assert f"{results['undisturbed_proposals']} proposals in" in page
