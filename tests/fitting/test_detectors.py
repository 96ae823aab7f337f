"""A detection's card has detectors beside it that know no labels, and one that learns from them."""

import json
from dataclasses import replace
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from tests.evaluate.traces import HOUR_NS, event
from tests.fitting.plugins import Heat, info
from torchloom_core.cli.app import app
from torchloom_core.floor.errors import PluginError
from torchloom_core.lab.activation.discovery import discover
from torchloom_core.lab.fitting.fit import fit
from torchloom_core.lab.fitting.time_split import FitSettings
from torchloom_core.lab.learning.card import to_markdown
from torchloom_core.lab.learning.skill import _DISPLAY_NAMES, BASELINES, DETECTORS
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import Component
from torchloom_core.lab.trace.bundle.writer import BundleWriter

pytestmark = pytest.mark.slow
PLUGINS = [one for one in discover() if one.name in {*BASELINES, *DETECTORS}]


HOURS, SERVERS = 24 * 60, 12


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """60 days of servers that are odd for some hours now and then, which is known afterwards."""
    return servers(tmp_path_factory.mktemp("traces") / "servers.tltrace", shift=3.0)


def servers(path, *, shift, at_once=False):
    random = np.random.default_rng(0)
    ids = [f"n{number:05}" for number in range(SERVERS)]
    odd = np.zeros((HOURS, SERVERS))
    spans = []
    for server, count in enumerate(random.poisson(10, SERVERS)):
        for start in random.integers(0, HOURS - 12, count).tolist():
            spans.append((start, start + int(random.integers(3, 12)), ids[server]))
            odd[start : spans[-1][1], server] = 1.0
    values = shift * odd + random.normal(size=odd.shape)
    at_ns = np.repeat(np.arange(HOURS, dtype=np.int64) * HOUR_NS, SERVERS)
    with BundleWriter(
        path, name="servers", start_ns=0, end_ns=HOURS * HOUR_NS,
        source="a test", licence="none", synthetic=True,
    ) as writer:  # fmt: skip
        for name in ids:
            writer.add(Component(id=name, kind="node"))
        for number, (start, end, name) in enumerate(sorted(spans)):
            fields = {"id": str(number), "kind": "odd", "fatal": False}
            writer.add(event(name, start, end, known_h=start if at_once else end, **fields))
        writer.telemetry(
            pa.table(
                {
                    "t_event": at_ns,
                    "t_avail": at_ns,
                    "component": np.tile(np.array(ids), HOURS),
                    "metric": ["heat"] * len(at_ns),
                    "value": values.ravel(),
                    "valid": np.ones(len(at_ns), dtype=bool),
                }
            )
        )
    return Bundle.open(path)


@pytest.fixture(scope="module")
def detecting():
    return FitSettings(
        until_ns=30 * 24 * HOUR_NS,
        tick_s=3600.0,
        every_s=3600.0,
        task="detect",
        repair_s=86_400.0,
        false_alarms_per_node_day=0.1,
    )


def test_the_card_has_each_detector_with_prevalence_and_recall_by_chance(bundle, detecting):
    card = fit(bundle, info(Heat), {}, detecting, baselines=PLUGINS).card
    names = ["random", *BASELINES, *DETECTORS]
    assert [one.predictor for one in card.baselines] == names
    assert {one.samples for one in card.baselines} == {card.score.samples}
    random, count, *others = card.baselines
    assert random.auprc.value < 2 * random.prevalence
    for one in (random, count):
        assert one.recall.low <= one.by_chance
    for one in (card.score, *others):
        assert one.auprc.low > 2 * one.prevalence
        assert one.recall.low > one.by_chance
    assert card.verdict.level in ("weak", "useful")
    assert sorted(card.score.versus) == sorted(names)
    assert "by chance |" in to_markdown(card)
    assert " late |" in to_markdown(card)


def test_no_detector_is_beside_a_forecast(bundle, detecting):
    forecast = replace(detecting, task="forecast", kinds=("odd",))
    card = fit(bundle, info(Heat), {"horizon_s": 3 * 3600.0}, forecast, baselines=PLUGINS).card
    names = [one.predictor for one in card.baselines]
    assert names == ["random", "fault_history", "one_rule", "logistic"]
    assert not any("seasonal_residual" in one for one in card.limits)


def test_the_row_rule_is_beside_the_predictor_that_it_is_made_of(bundle, detecting):
    (seasonal,) = (one for one in PLUGINS if one.name == "seasonal_residual")
    options = {"step_s": 3600.0, "every_s": 3600.0}
    card = fit(bundle, seasonal, options, detecting, baselines=[seasonal]).card
    assert [one.predictor for one in card.baselines] == ["random", "row_rule"]
    assert "No comparison with logistic: it is not installed." in card.limits


def test_a_detector_that_cannot_learn_is_a_limit_and_no_error(bundle, detecting):
    (seasonal,) = (one for one in PLUGINS if one.name == "seasonal_residual")
    with mock.patch.object(seasonal.cls, "fit", side_effect=PluginError("deaf")):
        card = fit(bundle, info(Heat), {}, detecting, baselines=[seasonal]).card
    assert [one.predictor for one in card.baselines] == ["random"]
    for name in DETECTORS:
        assert f"No comparison with {name}: deaf." in card.limits


def test_the_command_compares_with_the_detectors_on_its_card(bundle, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["fit", str(bundle.path), "--predictor", "anomaly", "--until", "30d"]
    words += ["--task", "detect", "--tick-s", "3600", "--option", "every_s=3600", "--json"]
    app([*words, "--option", "spans_s=[7200]"], exit_on_error=False, result_action="return_value")
    card = json.loads(capsys.readouterr().out)
    names = [one["predictor"] for one in card["baselines"]]
    assert names == ["random", *BASELINES, *DETECTORS]
    above = {name: one["value"] for name, one in card["score"]["versus"].items()}
    hardest = min(names[1:], key=lambda name: above[name])
    assert _DISPLAY_NAMES[hardest] in card["score"]["skill"]
