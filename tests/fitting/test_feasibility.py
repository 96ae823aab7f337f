"""What a fit takes of memory is known beforehand, and what there is no room for is left out."""

import resource
import subprocess
import sys
import tracemalloc
from dataclasses import replace

import pytest

from tests.evaluate.disks import DAY_NS
from tests.fitting.plugins import Options, Quiet
from tests.trace.small import NODES
from tests.trace.small import bundle as small_bundle
from torchloom_core.floor.errors import PluginError
from torchloom_core.lab.activation.discovery import discover
from torchloom_core.lab.fitting.build import build
from torchloom_core.lab.fitting.choose import _built, candidates
from torchloom_core.lab.fitting.examples import examples_of
from torchloom_core.lab.fitting.feasibility import (
    available_bytes,
    own_bytes,
    refuse_without_room,
    sample_interval_s,
    size_of,
    warn_fine_ticks,
    warn_frequent_forecasts,
    warn_short_spans,
    without_room,
)
from torchloom_core.lab.fitting.time_split import FitSettings, Fitting

HORIZON_S = 172_800.0
ROOM = 1 << 40
LOOSE_BYTES = 4 << 20
"""What does not grow with the trace."""


@pytest.fixture(scope="module")
def built(bundle, settings):
    options = {"horizon_s": HORIZON_S, "max_healthy": 500, "trees": 10}
    among = candidates(discover(), options, tick_s=settings.tick_s, has_metrics=True)
    return [(one.name, plugin) for one, plugin in _built(bundle, among, settings)]


@pytest.mark.slow
def test_every_learner_estimates_its_memory_and_takes_no_more(bundle, settings, built):
    """All that learn from rows agree; threshold_rules stores a few counts."""
    settings = replace(settings, until_ns=30 * DAY_NS)
    usual = {plugin.name: plugin for _, plugin in reversed(built)}
    for name in ("fault_history", "logistic", "seasonal_residual", "survival", "temporal_conv"):
        plugin = usual[name]
        estimate = own_bytes(plugin, size_of(bundle, settings, plugin))
        assert estimate > 0, name
        fitting = Fitting(bundle, settings, plugin)
        plugin.fit(examples_of(fitting, plugin))  # modules that it imports are none of it
        tracemalloc.start()
        try:
            plugin.fit(examples_of(fitting, plugin))
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < estimate + LOOSE_BYTES, f"{name}: {most} of {estimate}"


def test_what_there_is_no_room_for_is_left_out_by_name_with_the_figure(
    bundle, settings, built, caplog
):
    assert without_room(bundle, settings, built, ROOM) == {}
    takes = {name: own_bytes(plugin, size_of(bundle, settings, plugin)) for name, plugin in built}
    most = max(takes, key=lambda name: takes[name])
    out = without_room(bundle, settings, built, takes[most])
    assert most in out
    assert min(takes, key=lambda name: takes[name]) not in out
    assert out[most].startswith("left out: it takes up to 0.")
    assert f"{most}: left out" in caplog.text
    assert without_room(bundle, settings, built, 0).keys() == takes.keys()


def test_a_named_predictor_that_does_not_fit_in_memory_is_refused_in_one_line(bundle, settings):
    (info,) = (one for one in discover() if one.name == "boosting")
    plugin, _ = build(bundle, info, {}, tick_s=settings.tick_s, source="--option")
    refuse_without_room(bundle, settings, plugin, ROOM)
    with pytest.raises(PluginError, match=r"^predictor boosting: need 0\.\d+ GiB of memory to l"):
        refuse_without_room(bundle, settings, plugin, 1000)


def test_a_finer_pace_of_rare_samples_takes_no_more(bundle, settings, built):
    (plugin,) = (one for _, one in built if one.name == "seasonal_residual")
    coarse = size_of(bundle, settings, plugin)
    fine = replace(coarse, moments=1000 * coarse.moments, every_s=coarse.every_s / 1000.0)
    rare = {"values": 500}
    assert own_bytes(plugin, replace(fine, **rare)) < 2 * own_bytes(plugin, replace(coarse, **rare))


@pytest.mark.integration
def test_a_limit_of_the_process_counts_as_what_is_free():
    code = (
        "from torchloom_core.lab.fitting.feasibility import available_bytes as free; print(free())"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30)),
    )
    assert 0 < int(found.stdout) < 1 << 30
    assert available_bytes() > 0


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
