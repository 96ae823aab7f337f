"""Attributes are learned from, unless they reveal what became of the component."""

import numpy as np
import pytest

from tests.evaluate.traces import HOUR_NS, event
from tests.fitting.plugins import Blind
from torchloom_core.lab.activation.discovery import discover
from torchloom_core.lab.fitting.examples import examples_of
from torchloom_core.lab.fitting.fit import fit
from torchloom_core.lab.fitting.time_split import FitSettings, Fitting
from torchloom_core.lab.learning.card import to_markdown
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import Component
from torchloom_core.lab.trace.bundle.writer import BundleWriter

DAYS, DISKS = 120, 200
SAME_MODEL = "faults a node of the others whose model is the same, halved every 10 d"
SETTINGS = FitSettings(
    until_ns=70 * 24 * HOUR_NS, tick_s=86_400.0, every_s=86_400.0, repair_s=86_400.0
)


@pytest.fixture(scope="module")
def disks(tmp_path_factory):
    """Disks of four models, of which two fail ten times as often; what failed is gone."""
    random = np.random.default_rng(5)
    model = random.integers(0, 4, DISKS)
    lasts = random.geometric(np.where(model < 2, 0.01, 0.001))
    path = tmp_path_factory.mktemp("attributes") / "disks.tltrace"
    with BundleWriter(
        path,
        name="disks",
        start_ns=0,
        end_ns=DAYS * 24 * HOUR_NS,
        source="a test",
        licence="none",
        synthetic=True,
    ) as writer:
        for disk in range(DISKS):
            extra = {
                "model": f"m{model[disk]}",
                "size": float(4 * (1 + model[disk] % 2)),
                "status": "retired" if lasts[disk] < DAYS else "in use",
            }
            writer.add(Component(id=f"d{disk:03}", kind="disk", extra=extra))
        for disk in np.flatnonzero(lasts < DAYS).tolist():
            writer.add(event(f"d{disk:03}", 24 * int(lasts[disk])))
    return Bundle.open(path)


@pytest.fixture(scope="module")
def logistic():
    (found,) = (plugin for plugin in discover() if plugin.name == "logistic")
    return found


def test_all_attributes_are_used_and_leaky_ones_are_named(disks, logistic):
    model = fit(disks, logistic, {"horizon_s": 10 * 86_400.0}, SETTINGS)
    assert model.info.options["attributes"] == ["size"]
    assert model.info.options["groups"] == ["model", "status"]
    assert [flag.split(": ")[1] for flag in model.card.score.flags] == ["status"]
    assert model.card.verdict.level != "useful"
    assert any(limit.startswith("Without status: AUPRC ") for limit in model.card.limits)


def test_the_card_names_what_it_judges_by_and_a_model_that_fails_more_is_found(disks, logistic):
    options = {"horizon_s": 10 * 86_400.0, "groups": ["model"]}
    card = fit(disks, logistic, options, SETTINGS).card
    blind = fit(disks, logistic, {**options, "groups": [], "attributes": []}, SETTINGS).card
    assert SAME_MODEL in card.columns
    assert "its size" in card.columns
    assert f"- {SAME_MODEL}\n" in to_markdown(card)
    assert card.score.flags == ()
    assert card.score.auprc.value > 1.5 * blind.score.auprc.value


def test_an_attribute_can_be_declared_as_known_before(disks, logistic):
    known = FitSettings(**{**vars(SETTINGS), "known_before": ("status",)})
    assert fit(disks, logistic, {"horizon_s": 10 * 86_400.0}, known).card.score.flags == ()


def test_a_learner_is_shown_no_label_that_it_has_not_declared(disks):
    plugin = Blind(Blind.Options(metrics=()))
    examples = examples_of(Fitting(disks, SETTINGS, plugin), plugin)
    seen = next(iter(examples)).view.labels
    assert len(seen) == DISKS
    assert not any(seen)
