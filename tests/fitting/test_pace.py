"""A pace far above the one at which the trace has samples gives a warning."""

import pytest

from tests.fitting.plugins import Options, Quiet
from tests.trace.small import NODES
from tests.trace.small import bundle as small_bundle
from torchloom_core.lab.fitting.feasibility import (
    sample_interval_s,
    warn_fine_ticks,
    warn_frequent_forecasts,
    warn_short_spans,
)
from torchloom_core.lab.fitting.time_split import FitSettings


def every(seconds, path, samples=8):
    rows = [
        (seconds * n + offset, name, "temp", 1.0)
        for n in range(samples)
        for name, offset in (("a", 0.0), ("b", 3.0))
    ]
    return small_bundle(path / "t.tltrace", NODES, rows, seconds=10_000.0)


@pytest.mark.parametrize("seconds", [20.0, 600.0])
def test_the_interval_is_that_of_one_component(tmp_path, seconds):
    assert sample_interval_s(every(seconds, tmp_path)) == seconds


def test_a_few_samples_cause_no_warning(tmp_path, caplog):
    bundle = every(600.0, tmp_path, samples=3)
    assert sample_interval_s(bundle) is None
    warn_fine_ticks(bundle, 1.0)
    assert not caplog.messages


@pytest.mark.parametrize(("tick_s", "is_warned"), [(150.0, True), (151.0, False), (600.0, False)])
def test_four_ticks_per_sample_cause_a_warning_with_the_option(tmp_path, caplog, tick_s, is_warned):
    bundle = every(600.0, tmp_path)
    warn_fine_ticks(bundle, tick_s)
    text = f"samples come every 600 s, ticks every {tick_s:g} s: --tick-s 600 takes a fraction of"
    assert caplog.messages == [f"{bundle.path}: {text} the time"] * is_warned


@pytest.mark.parametrize(
    ("spans_s", "is_warned"), [((60.0, 599.0), True), ((60.0, 600.0), False), ((), False)]
)
def test_spans_shorter_than_a_sampling_interval_cause_a_warning_with_longer_ones(
    tmp_path, caplog, spans_s, is_warned
):
    bundle = every(600.0, tmp_path)
    warn_short_spans(bundle, "quiet", spans_s, [43_200.0, 1_209_600.0])
    text = "aggregates metrics over at most 599 s, but samples come every 600 s"
    option = "use --option 'spans_s=[43200, 1209600]'"
    assert caplog.messages == [f"{bundle.path}: predictor quiet {text}: {option}"] * is_warned


@pytest.mark.parametrize(
    ("every_s", "is_warned"), [(1800.0, True), (1801.0, False), (7200.0, False)]
)
def test_frequent_forecasts_without_telemetry_cause_a_warning_with_the_option(
    tmp_path, caplog, every_s, is_warned
):
    bundle = small_bundle(tmp_path / "t.tltrace", NODES, [], seconds=10_000.0)
    settings = FitSettings(until_ns=0, tick_s=1.0, repair_s=0.0, every_s=every_s)
    warn_frequent_forecasts(bundle, settings, "quiet", [Quiet(Options(horizon_s=86_400.0))] * 2)
    text = (
        "reads no telemetry, but forecasts every 1800 s, 48 times per horizon: --every-s 7200, "
        "12 times per horizon, takes a fraction of the time"
    )
    assert caplog.messages == [f"{bundle.path}: predictor quiet {text}"] * is_warned


@pytest.mark.parametrize("among", [(), (Options(horizon_s=86_400.0),)])
def test_a_candidate_that_reads_telemetry_prevents_the_warning(tmp_path, caplog, among):
    settings = FitSettings(until_ns=0, tick_s=1.0, repair_s=0.0, every_s=60.0)
    reads = Options(horizon_s=86_400.0, metrics=("temp",))
    candidates = [*map(Quiet, (*among, reads))]
    warn_frequent_forecasts(every(600.0, tmp_path), settings, "auto", candidates)
    assert not caplog.messages
