"""Who looks at a trace, or asks, far more often than it tells anything is told so."""

import pytest

from tests.fitting.plugins import Options, Quiet
from tests.trace.small import NODES
from tests.trace.small import bundle as small_bundle
from torchloom_core.fitting.pace import (
    say_asked_often,
    say_short_spans,
    say_too_often,
    told_every_s,
)
from torchloom_core.fitting.stages import FitSettings


def every(seconds, path, samples=8):
    rows = [
        (seconds * n + offset, name, "temp", 1.0)
        for n in range(samples)
        for name, offset in (("a", 0.0), ("b", 3.0))
    ]
    return small_bundle(path / "t.tltrace", NODES, rows, seconds=10_000.0)


@pytest.mark.parametrize("seconds", [20.0, 600.0])
def test_the_interval_is_that_of_one_component(tmp_path, seconds):
    assert told_every_s(every(seconds, tmp_path)) == seconds


def test_of_few_samples_nothing_is_said(tmp_path, caplog):
    bundle = every(600.0, tmp_path, samples=3)
    assert told_every_s(bundle) is None
    say_too_often(bundle, 1.0)
    assert not caplog.messages


@pytest.mark.parametrize(("tick_s", "told"), [(150.0, True), (151.0, False), (600.0, False)])
def test_a_look_four_times_in_an_interval_is_told_with_the_option(tmp_path, caplog, tick_s, told):
    bundle = every(600.0, tmp_path)
    say_too_often(bundle, tick_s)
    text = f"a sample every 600 s is looked at every {tick_s:g} s: --tick-s 600 takes a fraction of"
    assert caplog.messages == [f"{bundle.path}: {text} the time"] * told


@pytest.mark.parametrize(
    ("spans_s", "told"), [((60.0, 599.0), True), ((60.0, 600.0), False), ((), False)]
)
def test_spans_that_are_all_shorter_than_a_sample_are_told_with_some_that_are_not(
    tmp_path, caplog, spans_s, told
):
    bundle = every(600.0, tmp_path)
    say_short_spans(bundle, "quiet", spans_s, [43_200.0, 1_209_600.0])
    text = "sums metrics up over 599 s at the most, and a sample comes every 600 s"
    option = "--option 'spans_s=[43200, 1209600]' sums up several"
    assert caplog.messages == [f"{bundle.path}: predictor quiet {text}: {option}"] * told


@pytest.mark.parametrize(("every_s", "told"), [(1800.0, True), (1801.0, False), (7200.0, False)])
def test_who_reads_no_telemetry_and_is_asked_often_in_a_horizon_is_told_what_would_do(
    tmp_path, caplog, every_s, told
):
    bundle = small_bundle(tmp_path / "t.tltrace", NODES, [], seconds=10_000.0)
    settings = FitSettings(until_ns=0, tick_s=1.0, repair_s=0.0, every_s=every_s)
    say_asked_often(bundle, settings, "quiet", [Quiet(Options(horizon_s=86_400.0))] * 2)
    text = "is asked every 1800 s, 48 times a horizon: --every-s 7200, 12 times, takes a fraction"
    assert (
        caplog.messages
        == [f"{bundle.path}: predictor quiet reads no telemetry of it, and {text} of the time"]
        * told
    )


@pytest.mark.parametrize("among", [(), (Options(horizon_s=86_400.0),)])
def test_where_one_of_those_that_may_be_chosen_reads_telemetry_nothing_is_said(
    tmp_path, caplog, among
):
    settings = FitSettings(until_ns=0, tick_s=1.0, repair_s=0.0, every_s=60.0)
    reads = Options(horizon_s=86_400.0, metrics=("temp",))
    say_asked_often(every(600.0, tmp_path), settings, "auto", [*map(Quiet, (*among, reads))])
    assert not caplog.messages
