"""A synthetic trace is what its parameters say, the same for the same seed."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from cyclopts import App

from tests.trace.small import contents
from torchloom_core.cli.trace_make_commands import bandwidth
from torchloom_core.cli.trace_make_commands import synthesize as command
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import ConfigError, TraceError
from torchloom_core.lab.simulate.links import links_of
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.feed.watched import watch
from torchloom_core.lab.trace.synthetic.faults import draw_faults
from torchloom_core.lab.trace.synthetic.parameters import START_NS, Parameters
from torchloom_core.lab.trace.synthetic.trace import (
    METRICS,
    BandwidthParameters,
    synthesize,
    synthesize_bandwidth,
    tables,
)
from torchloom_core.lab.trace.validation.validate import validate

SMALL = Parameters(nodes=20, racks=4, racks_per_feed=2, days=3.0, interval_s=900.0, seed=5)
RESTLESS = msgspec.structs.replace(SMALL, faults_per_node_day=0.5, power_per_feed_day=0.2)


def made(path: Path, parameters: Parameters) -> Bundle:
    synthesize(path, parameters)
    return Bundle.open(path)


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(tmp_path):
    first = contents(made(tmp_path / "1" / "x.tltrace", RESTLESS).path)
    assert contents(made(tmp_path / "2" / "x.tltrace", RESTLESS).path) == first
    other = msgspec.structs.replace(RESTLESS, seed=6)
    differs = contents(made(tmp_path / "3" / "x.tltrace", other).path)
    assert differs.keys() == first.keys()
    assert {file for file in first if differs[file] != first[file]} == {
        "manifest.json",
        "events.jsonl",
        "telemetry/000000.parquet",
    }


def test_the_manifest_has_the_parameters_and_is_synthetic(tmp_path):
    manifest = made(tmp_path / "x.tltrace", RESTLESS).manifest
    assert manifest.synthetic
    assert msgspec.json.decode(manifest.notes, type=Parameters) == RESTLESS
    assert manifest.load_dependent == ("gpu_temp_celsius", "gpu_power_watts")


def test_the_topology_follows_the_parameters_and_has_the_job(tmp_path):
    trace = made(tmp_path / "x.tltrace", SMALL)
    kinds = [part.kind for part in trace.topology()]
    counts = {kind: kinds.count(kind) for kind in sorted(set(kinds))}
    assert counts == {"gpu": 160, "nic": 20, "node": 20, "power": 2, "rack": 4, "switch": 4}
    watched = watch(trace)
    assert (len(watched.ids), len(watched.rows_of("rack-000"))) == (20, 5)
    assert len(watched.rows_of("switch-001")) == 5
    assert len(watched.rows_of("power-01")) == 10
    (job,) = trace.jobs()
    assert job.groups == len(trace.placement()) == 15


def test_all_rows_lie_in_the_span_and_are_available_after_they_happen(tmp_path):
    trace = made(tmp_path / "x.tltrace", RESTLESS)
    start, end = trace.manifest.start_ns, trace.manifest.end_ns
    assert end - start == 3 * 86_400 * SECOND_NS
    assert len(trace.events()) > 20
    assert validate(trace.path).faults == ()
    for event in trace.events():
        assert start <= event.t_event < event.t_avail <= end
        assert event.t_resolved is None or event.t_event < event.t_resolved <= end
    for table in trace.telemetry():
        frame = table.to_pandas()
        assert (frame.t_event < frame.t_avail).all()
        assert frame.t_event.min() >= start
        assert frame.t_avail.max() <= end


def test_nodes_fail_at_the_configured_rate_and_lemons_far_more_often():
    parameters = Parameters(
        nodes=400, days=400.0, repair_median_s=60.0, power_per_feed_day=0.0, switch_per_rack_day=0.0
    )
    of_nodes = [e for e in draw_faults(parameters).events if e.component.startswith("node-")
                and e.follows == "component"]  # fmt: skip
    expected = 400 * 400 * parameters.faults_per_node_day
    assert abs(len(of_nodes) - expected) < 4 * expected**0.5
    counts: dict[str, int] = {}
    for event in of_nodes:
        node = event.component.partition("/")[0]
        counts[node] = counts.get(node, 0) + 1
    worst = sorted(counts.values())[-12:]
    assert np.mean(worst) > 5 * np.median(list(counts.values()))


def test_intervals_follow_the_weibull_shape():
    def spread(shape: float) -> float:
        parameters = Parameters(
            nodes=1, days=20_000.0, weibull_shape=shape, repair_median_s=1.0, lemon_share=0.0,
            power_per_feed_day=0.0, switch_per_rack_day=0.0, fabric_per_rack_day=0.0,
            job_faults_per_day=0.0, faults_per_node_day=0.05,
        )  # fmt: skip
        times = [event.t_event for event in draw_faults(parameters).events]
        gaps = np.diff(times)
        return float(gaps.std() / gaps.mean())

    # The coefficient of variation of a Weibull of shape 1 is 1, of shape 3 it is 0.363.
    assert spread(1.0) == pytest.approx(1.0, abs=0.1)
    assert spread(3.0) == pytest.approx(0.363, abs=0.04)


def test_a_broken_node_is_silent_and_a_power_cut_silences_a_whole_feed(tmp_path):
    trace = made(tmp_path / "x.tltrace", RESTLESS)
    frame = next(iter(trace.telemetry())).to_pandas()
    watched = watch(trace)
    cuts = [event for event in trace.events() if event.kind in ("power", "host")]
    assert {event.kind for event in cuts} == {"power", "host"}
    for event in cuts:
        nodes = [watched.ids[row] for row in watched.rows_of(event.component)]
        assert len(nodes) == (10 if event.kind == "power" else 1)
        until = event.t_resolved or trace.manifest.end_ns
        silent = frame[
            frame.component.isin(nodes) & frame.t_event.between(event.t_event, until - 1)
        ]
        assert silent.empty


def test_metrics_of_the_gpus_vanish_before_one_falls_off_the_bus():
    parameters = msgspec.structs.replace(
        RESTLESS, vanish_median_s=6 * 3600.0, lead_sigma=0.0, gaps_per_node_day=0.0,
        scraper_gaps_per_day=0.0, power_per_feed_day=0.0, switch_per_rack_day=0.0, interval_s=600.0,
    )  # fmt: skip
    faults = draw_faults(parameters)
    (table,) = tables(parameters, faults)
    frame = table.to_pandas()
    fallen = next(
        event
        for event in faults.events
        if event.kind == "gpu_off_bus" and event.t_event - START_NS > 24 * 3600 * SECOND_NS
    )
    node = fallen.component.partition("/")[0]
    last_hours = frame[
        (frame.component == node)
        & frame.t_event.between(fallen.t_event - 5 * 3600 * SECOND_NS, fallen.t_event - 1)
    ]
    assert set(last_hours.metric) == {"nic_errors_per_min"}


def test_some_faults_are_foreshadowed_and_some_signs_mean_nothing():
    parameters = Parameters(
        nodes=200, days=100.0, interval_s=0.0, faults_per_node_day=0.02, precursor_share=0.5,
        false_signs_per_node_day=0.01,
    )  # fmt: skip
    faults = draw_faults(parameters)
    ends = {event.t_event for event in faults.events}
    true = [sign for sign in faults.signs if sign.until_ns in ends]
    visible = [e for e in faults.events if e.kind in ("gpu_fault", "gpu_ecc", "nic", "thermal")]
    assert len(true) / len(visible) == pytest.approx(0.5, abs=0.1)
    assert len(faults.signs) - len(true) == pytest.approx(200, abs=60)
    leads_h = [(sign.until_ns - sign.from_ns) / 3600e9 for sign in true]
    assert np.median(leads_h) == pytest.approx(6, rel=0.35)


def test_a_sign_can_be_seen_and_days_have_a_rhythm():
    parameters = Parameters(
        nodes=4, days=10.0, interval_s=600.0, faults_per_node_day=0.0, lemon_share=0.0,
        false_signs_per_node_day=0.1, gaps_per_node_day=0.0, scraper_gaps_per_day=0.0,
        lead_median_s=40_000.0, power_per_feed_day=0.0, switch_per_rack_day=0.0, job_share=0.0,
    )  # fmt: skip
    faults = draw_faults(parameters)
    (table,) = tables(parameters, faults)
    frame = table.to_pandas()
    assert len(frame) == 4 * 1440 * len(METRICS)
    sign = next(sign for sign in faults.signs if METRICS.index("gpu_temp_celsius") in sign.metrics)
    temperature = frame[
        (frame.metric == "gpu_temp_celsius") & (frame.component == f"node-{sign.node:04d}")
    ].set_index("t_event")["value"]
    near = temperature[(temperature.index > sign.until_ns - 3600 * SECOND_NS)
                       & (temperature.index < sign.until_ns)]  # fmt: skip
    assert near.mean() > temperature.median() + 6
    hour = (temperature.index // (3600 * SECOND_NS)) % 24
    by_hour = temperature.groupby(hour).median()
    assert by_hour.max() - by_hour.min() > 3


def test_without_an_interval_there_is_no_telemetry(tmp_path):
    trace = made(tmp_path / "x.tltrace", msgspec.structs.replace(SMALL, interval_s=0.0))
    assert trace.metrics == ()


@pytest.mark.slow
def test_pieces_are_of_one_size_however_long_the_trace():
    def largest(days: float) -> int:
        parameters = Parameters(nodes=300, days=days, interval_s=60.0)
        return max(table.num_rows for table in tables(parameters, draw_faults(parameters)))

    assert largest(2.0) <= 1 << 20
    assert largest(4.0) <= 1 << 20


def test_the_command_takes_options_before_its_file_of_parameters(tmp_path, capsys):
    file = tmp_path / "p.toml"
    file.write_text("nodes = 9\ndays = 2\ninterval_s = 0\nlemon_share = 0.5\n")
    app = App()
    app.default(command)
    out = tmp_path / "mine.tltrace"
    app([str(out), "--parameters", str(file), "--nodes", "7"], result_action="return_value")
    trace = Bundle.open(out)
    parameters = msgspec.json.decode(trace.manifest.notes, type=Parameters)
    assert (parameters.nodes, parameters.days, parameters.lemon_share) == (7, 2.0, 0.5)
    assert "topology.jsonl" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("nodse = 3", "p.toml:1: nodse"),
        ("nodes = 0", "p.toml:1: nodes"),
        ("nodes", "p.toml:1: not valid TOML"),
    ],
)
def test_parameters_that_cannot_be_are_named(tmp_path, text, error):
    file = tmp_path / "p.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=error):
        command(tmp_path / "x.tltrace", parameters=file)


def test_more_racks_than_nodes_are_refused(tmp_path):
    with pytest.raises(TraceError, match="need racks <= nodes, was 9 racks, 4 nodes"):
        synthesize(tmp_path / "x.tltrace", Parameters(nodes=4, racks=9))


def test_what_a_gpu_measures_is_called_as_a_live_run_calls_it():
    live = (Path(__file__).parents[2] / "docs" / "threadlet.md").read_text(encoding="utf-8")
    table = live.partition("| metrics `gpu_...` |")[2].partition("\n\n")[0]
    measured = [name for name in METRICS if not name.startswith("nic_")]
    assert all(f"`{name.removeprefix('gpu_')}`" in table for name in measured)


def linked(path, **fields):
    synthesize_bandwidth(path, BandwidthParameters(**fields))
    return Bundle.open(path)


def links(bundle):
    """Return ``(workers, samples)`` in Mbit/s."""
    (table,) = bundle.telemetry()
    values = table["value"].to_numpy() / 125_000
    return values.reshape(-1, len(bundle.measured)).T


@pytest.mark.parametrize("shape", ["steps", "sinus", "failing"])
def test_it_is_sound_and_the_same_seed_gives_the_same_bytes(tmp_path, shape):
    fields = {"shape": shape, "jitter": 0.1, "unequal": 0.2, "seed": 3}
    bundle = linked(tmp_path / "1" / "x.tltrace", **fields)
    assert validate(bundle.path).faults == ()
    assert linked(tmp_path / "2" / "x.tltrace", **fields).digest() == bundle.digest()
    assert linked(tmp_path / "3" / "x.tltrace", **{**fields, "seed": 4}).digest() != bundle.digest()


def test_steps_hold_each_level_and_begin_again(tmp_path):
    bundle = linked(tmp_path / "x.tltrace", mbit_per_s=(800.0, 40.0), hold_s=5.0, duration_s=15.0)
    assert links(bundle).tolist() == 4 * [[800.0] * 5 + [40.0] * 5 + [800.0] * 5]
    assert links_of(bundle).bottleneck.at_s == (0.0, 5.0, 10.0)


def test_a_sinus_goes_from_the_largest_to_the_least_and_back(tmp_path):
    bundle = linked(
        tmp_path / "x.tltrace", shape="sinus", mbit_per_s=(1000.0, 10.0), hold_s=10.0,
        duration_s=21.0,
    )  # fmt: skip
    line = links(bundle)[0]
    assert line[[0, 5, 10, 20]] == pytest.approx([1000.0, 100.0, 10.0, 1000.0])


def test_of_a_failing_link_the_others_know_nothing(tmp_path):
    bundle = linked(
        tmp_path / "x.tltrace", shape="failing", mbit_per_s=(1000.0, 1.0, 7.0), duration_s=100.0
    )
    lines = links(bundle)
    assert (lines[:-1] == 1000.0).all()
    assert (np.diff(lines[-1]) < 0).all()
    assert lines[-1][50] == pytest.approx(1000**0.5)


def test_links_may_differ_for_good_and_from_value_to_value(tmp_path):
    lines = links(linked(tmp_path / "x.tltrace", mbit_per_s=(100.0,), unequal=0.5, jitter=0.05))
    assert np.ptp(lines.mean(axis=1)) > 20.0
    assert np.log(lines).std(axis=1) == pytest.approx(0.05, rel=0.25)


def test_the_command_takes_levels_and_refuses_what_is_none(tmp_path, capsys):
    app = App(default_command=bandwidth, result_action="return_value")
    words = ["x.tltrace", "--mbit-per-s", "500", "--mbit-per-s", "50", "--hold-s", "2"]
    out = tmp_path / "x.tltrace"
    app([str(out), *words[1:], "--duration-s", "4", "--workers", "2"])
    assert links(Bundle.open(out)).tolist() == 2 * [[500.0, 500.0, 50.0, 50.0]]
    assert "8 rows" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="bandwidth: mbit_per_s"):
        app([str(tmp_path / "y.tltrace"), "--mbit-per-s", "-5"])


def test_too_many_values_are_refused(tmp_path):
    with pytest.raises(TraceError, match="need at most 50,000,000 values"):
        linked(tmp_path / "x.tltrace", duration_s=1e8)
