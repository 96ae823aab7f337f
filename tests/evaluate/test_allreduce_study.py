"""Arms on a bandwidth trace: their times by hand, their ranking, and a policy that pays."""

import json
import re

import msgspec
import pytest

from tests.docs.pages import ROOT
from tests.evaluate.test_allreduce_loop import MBIT, BelowInt8, drive
from tests.evaluate.test_evaluate_command import evaluate, problem
from tests.simulate.links import write_links
from torchloom_core.config.evaluation import SENT_BY_FORMULA, Allreduce, AllreduceMode
from torchloom_core.config.schema import Config
from torchloom_core.floor.errors import ConfigError
from torchloom_core.lab.evaluate.allreduce.run import SENT, Setting
from torchloom_core.lab.evaluate.allreduce.study import run_study
from torchloom_core.lab.evaluate.allreduce_results import AllreduceRunResult
from torchloom_core.lab.evaluate.parallel import Workforce
from torchloom_core.lab.evaluate.run_cache import Runner
from torchloom_core.lab.simulate.links import links_of

JOB = Allreduce(
    gradient_bytes=12_000_000,
    compute_s=0.15,
    latency_s=0.0003,
    noise=0.0,
    steps=200,
    modes={
        "none": AllreduceMode(),
        "bf16": AllreduceMode(compress_s=0.02),
        "int8": AllreduceMode(compress_s=0.06),
        "topk": AllreduceMode(compress_s=0.05, quality=0.4),
    },
)
SENT_3 = {"none": 1.0, "bf16": 0.5, "int8": 0.254, "topk": 0.0225}
RANKS = 3
RING = 2 * (RANKS - 1) / RANKS * 12e6
HOPS_S = 2 * (RANKS - 1) * 0.0003


def scheduled(path, levels, span_s):
    """Write three links, the second of which is the slowest: ``(from_s, Mbit/s)``."""
    values = [
        (at_s, worker, rate * MBIT * (1.0 if worker == "w1" else 1.5))
        for at_s, rate in levels
        for worker in ("w0", "w1", "w2")
    ]
    return write_links(path, values, span_s=span_s, nodes=("w0", "w1", "w2"))


def study(bundle, job=JOB, seeds=1, folder=None, **workforce):
    setting = Setting(trace=str(bundle.path), config=Config(), job=job)
    return run_study(
        setting,
        [],
        quiet_runner(folder or bundle.path.parent / "runs", **workforce),
        seeds=seeds,
    )


def quiet_runner(folder, **workforce):
    return Runner(folder, AllreduceRunResult, Workforce(**workforce), lambda done, total: None)


def by_name(simulation):
    return {arm.name: arm for arm in simulation.arms}


def ranking(simulation):
    static = [arm for arm in simulation.arms if arm.kind == "baseline"]
    best_first = sorted(static, key=lambda arm: -arm.progress_per_h.value)
    return [arm.name.removeprefix("static ") for arm in best_first]


def by_hand_s(mode, before, after, change_s):
    """Return the time of all steps where the link changes once, in a step's wire."""
    own_s = JOB.compute_s + JOB.modes[mode].compress_s
    sent = SENT_3[mode] * RING
    fast_s, slow_s = (own_s + sent / (rate * MBIT) + HOPS_S for rate in (before, after))
    steps = -(-200 // JOB.modes[mode].quality)
    whole = int(change_s / fast_s)
    into_wire_s = change_s - whole * fast_s - own_s
    carried = max(0.0, into_wire_s) * before * MBIT
    begins_s = max(whole * fast_s + own_s, change_s)
    ends_s = begins_s + (sent - carried) / (after * MBIT) + HOPS_S
    return ends_s + (steps - whole - 1) * slow_s


# --- by hand ---


@pytest.mark.parametrize(("before", "after"), [(1000.0, 60.0), (200.0, 800.0), (30.0, 300.0)])
def test_every_static_mode_takes_as_long_as_by_hand(tmp_path, before, after):
    bundle = scheduled(tmp_path / "x.tltrace", [(0.0, before), (12.34, after)], span_s=9000.0)
    arms = by_name(study(bundle))
    for mode in JOB.modes:
        by_hand = by_hand_s(mode, before, after, 12.34)
        assert arms[f"static {mode}"].time_s.value == pytest.approx(by_hand, rel=1e-9), mode


@pytest.mark.parametrize(
    ("mbit_per_s", "ranked"),
    [
        # By hand, seconds a step: .15 + compress + .016 Gbit of the ring's 128 Mbit, sent share.
        (5000.0, ["none", "bf16", "int8", "topk"]),  # .176 .183 .217 .504
        (1000.0, ["bf16", "int8", "none", "topk"]),  # .235 .244 .279 .509
        (300.0, ["int8", "bf16", "topk", "none"]),  # .320 .385 .527 .578
        (20.0, ["topk", "int8", "bf16", "none"]),  # .863 1.84 3.37 6.55
    ],
)
def test_the_ranking_of_the_modes_changes_with_the_bandwidth(tmp_path, mbit_per_s, ranked):
    bundle = scheduled(tmp_path / "x.tltrace", [(0.0, mbit_per_s)], span_s=60.0)
    simulation = study(bundle)
    assert ranking(simulation) == ranked
    assert simulation.reference == f"static {ranked[0]}"
    assert by_name(simulation)["oracle"].speedup.value == pytest.approx(1.0)


def test_the_oracle_is_faster_than_any_mode_alone_where_the_bandwidth_changes(tmp_path):
    levels = [(0.0, 5000.0), (30.0, 20.0)]
    simulation = study(scheduled(tmp_path / "x.tltrace", levels, span_s=60.0))
    oracle = by_name(simulation)["oracle"]
    assert oracle.speedup.value > 1.1
    assert oracle.in_mode["none"] > 0.3
    assert oracle.in_mode["topk"] > 0.1


def test_a_policy_that_switches_below_a_bandwidth_beats_both_modes(tmp_path):
    levels = [(0.0, 2000.0), (60.0, 40.0), (300.0, 2000.0)]
    bundle = scheduled(tmp_path / "x.tltrace", levels, span_s=360.0)
    modes = {"none": AllreduceMode(), "int8": AllreduceMode(compress_s=0.1)}
    job = msgspec.structs.replace(JOB, modes=modes, steps=None)
    simulation = study(bundle, job)
    _, _, run = drive(links_of(bundle), BelowInt8(200.0), job, goal=simulation.progress)
    assert [stretch.mode for stretch in run.stretches] == ["none", "int8", "none"]
    arms = by_name(simulation)
    best_s = min(arms[f"static {mode}"].time_s.value for mode in modes)
    assert run.now_s < best_s / 1.05
    assert run.now_s > arms["oracle"].time_s.value


# --- what it is measured by ---


def test_the_default_goal_is_the_progress_of_the_best_mode_within_the_trace(tmp_path):
    bundle = scheduled(tmp_path / "x.tltrace", [(0.0, 300.0)], span_s=60.0)
    simulation = study(bundle, msgspec.structs.replace(JOB, steps=None))
    int8_s = 0.15 + 0.06 + 0.254 * RING / (300 * MBIT) + HOPS_S
    assert simulation.progress == int(60.0 / int8_s)
    assert by_name(simulation)["static int8"].time_s.value == pytest.approx(
        simulation.progress * int8_s
    )


def test_a_mode_that_takes_too_long_is_stopped_and_ranked_by_its_progress(tmp_path):
    modes = {"none": AllreduceMode(), "topk": AllreduceMode()}
    job = msgspec.structs.replace(JOB, modes=modes)
    simulation = study(scheduled(tmp_path / "x.tltrace", [(0.0, 1.0)], span_s=60.0), job)
    none = by_name(simulation)["static none"]
    assert none.time_s is None
    none_s = 0.15 + RING / MBIT + HOPS_S
    assert none.progress_per_h.value == pytest.approx(3600 / none_s)


def test_noise_is_the_same_in_all_arms_of_a_seed_and_another_in_another(tmp_path):
    bundle = scheduled(tmp_path / "x.tltrace", [(0.0, 300.0)], span_s=60.0)
    job = msgspec.structs.replace(JOB, noise=0.1)
    simulation = study(bundle, job, seeds=6)
    arms = by_name(simulation)
    none = arms["static none"]
    assert none.time_s.low < none.time_s.value < none.time_s.high
    # What is paired varies less than what it is made of.
    ratio = none.speedup
    assert (ratio.ahead, ratio.behind) == (0, 6)
    spread = (none.time_s.high - none.time_s.low) / none.time_s.value
    assert (ratio.high - ratio.low) / ratio.value < spread


@pytest.mark.long
def test_the_same_seeds_give_the_same_bytes_one_by_one_or_many_at_once(tmp_path):
    bundle = scheduled(tmp_path / "x.tltrace", [(0.0, 300.0), (30.0, 50.0)], span_s=60.0)
    job = msgspec.structs.replace(JOB, noise=0.05)
    one, other, many = (
        msgspec.json.encode(study(bundle, job, seeds=3, folder=tmp_path / name, jobs=jobs))
        for name, jobs in (("a", 1), ("b", 1), ("c", 2))
    )
    assert one == other == many


def test_a_trace_in_which_no_step_ends_is_refused(tmp_path):
    bundle = scheduled(tmp_path / "x.tltrace", [(0.0, 1.0)], span_s=1.0)
    with pytest.raises(ConfigError, match="need a trace longer than one step, was 1 s"):
        study(bundle, msgspec.structs.replace(JOB, steps=None, modes={"none": AllreduceMode()}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"compute_s": 1e-9, "gradient_bytes": 1, "latency_s": 0.0},
            r"was \S+ with none: raise compute_s",
        ),
        (
            {"steps": 1e5, "modes": {"weak": AllreduceMode(sent=0.1, quality=1e-6)}},
            "1e.11 with weak",
        ),
    ],
)
def test_a_workload_of_more_steps_than_can_be_simulated_is_refused(tmp_path, changes, message):
    bundle = scheduled(tmp_path / "x.tltrace", [(0.0, 300.0)], span_s=60.0)
    modes = {"none": AllreduceMode(), **changes.get("modes", {})}
    job = msgspec.structs.replace(JOB, **{"steps": None, **changes, "modes": modes})
    with pytest.raises(ConfigError, match=f"need at most 20,000,000 steps, .*{message}"):
        study(bundle, job)


def test_the_bytes_of_a_mode_match_the_manual():
    text = (ROOT / "docs" / "compression.md").read_text()
    shares = dict(re.findall(r"(?m)^\| `(\w+)` \| .*? \| (\d*\.?\d+)(?: at 1 %)? \|", text))
    assert {*SENT} == {*SENT_BY_FORMULA}
    for mode, sent in SENT.items():
        assert sent(3) == pytest.approx(float(shares[mode]), abs=6e-4), mode


# --- as a person types it ---

CONFIG = """
[evaluate.allreduce]
gradient_bytes = 12_000_000
compute_s = 0.15

[evaluate.allreduce.modes.none]
[evaluate.allreduce.modes.int8]
compress_s = 0.06
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scheduled(tmp_path / "net.tltrace", [(0.0, 1000.0), (20.0, 50.0)], span_s=40.0)
    heat = [(0.0, worker, 50.0) for worker in ("w0", "w1", "w2")]
    nodes = ("w0", "w1", "w2")
    for trace, metric in (("hot", "gpu_temp_celsius"), ("misnamed", "link_bytes")):
        path = tmp_path / f"{trace}.tltrace"
        write_links(path, heat, span_s=40.0, nodes=nodes, metric=metric)
    (tmp_path / "net.toml").write_text(CONFIG)
    (tmp_path / "plain.toml").write_text("[evaluate]\ngroups = 2\n")
    return tmp_path


@pytest.mark.long
def test_the_report_is_written_as_table_json_and_page(folder, capsys):
    words = ("net.tltrace", "--config", "net.toml", "--policy", "straggler", "--seeds", "6")
    assert evaluate(*words) == 0
    printed = capsys.readouterr().out
    assert "static int8" in printed
    assert "straggler took no action" in printed
    assert "The best static mode in hindsight is " in printed
    (report,) = json.loads((folder / "net-evaluation" / "report.json").read_bytes())["traces"]
    found = report["allreduce"]
    assert [arm["name"] for arm in found["arms"]] == [
        "static none", "static int8", "oracle", "straggler",
    ]  # fmt: skip
    assert found["job"]["ranks"] == 3
    assert report["simulation"] is None
    assert any("made up" in sentence for sentence in report["assumptions"])
    page = (folder / "net-evaluation" / "report.html").read_text()
    for text in ("Time to progress", "slowest link, Mbit/s", "progress, steps of mode none"):
        assert text in page
    before = (folder / "net-evaluation" / "report.json").read_bytes()
    assert evaluate(*words, "--out", "again") == 0
    assert (folder / "again" / "report.json").read_bytes() == before


def test_a_policy_that_reads_an_unreported_metric_is_named(folder, caplog):
    (folder / "hot.toml").write_text(
        CONFIG + "[policies.thresholds]\nrules = [{metric = 'heat', level = 1.0}]\n"
    )
    evaluate("net.tltrace", "--config", "hot.toml", "--seeds", "1")
    assert "reads metrics that the simulated run lacks: heat" in caplog.text


def test_alerts_of_a_policy_are_in_the_report(folder, capsys):
    tuned = '[policies.allreduce_tuner]\nmodes = ["none", "bf17"]\n'
    (folder / "tuned.toml").write_text(CONFIG + tuned)
    assert evaluate("net.tltrace", "--config", "tuned.toml", "--seeds", "1") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "! alert of " in printed
    assert "bf17" in printed
    (report,) = json.loads((folder / "net-evaluation" / "report.json").read_bytes())["traces"]
    (expected,) = report["allreduce"]["arms"][-1]["operations"]["alerts"]
    assert "bf17" in expected
    assert "bf17" in (folder / "net-evaluation" / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("hot.tltrace", "--config", "net.toml"), "need link_bytes_per_s in the telemetry of"),
        (("misnamed.tltrace", "--config", "net.toml"), "was none; did you mean link_bytes?"),
        (("net.tltrace", "--config", "plain.toml"), "need [evaluate.allreduce] to simulate steps"),
        (("net.tltrace", "--config", "net.toml", "--days", "1"), "--days: need none with"),
        (("net.tltrace", "--config", "net.toml", "--sweep", "spares=0..2"), "--sweep: need a"),
        (("net.tltrace", "--config", "net.toml", "--predictor", "ewma"), "need a --policy"),
        (("net.tltrace", "--config", "net.toml", "--jobs", "0"), "--jobs: need at least 1, or -1"),
        (("net.tltrace", "--config", "net.toml", "--scores", "a=b.csv"), "need --mode replay"),
    ],
)
def test_an_invalid_request_is_one_line(folder, words, expected):
    assert expected in problem(*words)


@pytest.mark.parametrize(
    ("was", "now", "expected"),
    [
        ("compute_s", "start = 'fp8'\ncompute_s", "start: need one of modes (none, int8), was"),
        ("modes.int8", "modes.int9", "modes.int9: need sent: there is no formula for its bytes"),
        ("compress_s", "compres_s", "net.toml:8: evaluate.allreduce.modes.int8.compres_s: unknown"),
        ("= 0.06", "= -1", "need a number >= 0 and <= 1e+09, was -1"),
    ],
)
def test_a_config_error_names_its_place(folder, was, now, expected):
    (folder / "net.toml").write_text(CONFIG.replace(was, now))
    assert expected in problem("net.tltrace", "--config", "net.toml")


def test_a_trace_with_links_and_failures_is_still_one_of_failures(folder, caplog):
    from tests.evaluate.episodes import some_events, write

    write(folder / "both.tltrace", some_events(), metrics=("link_bytes_per_s",))
    words = ("--days", "0.5", "--seeds", "1", "--no-sensitivity")
    (folder / "plain.toml").write_text("[evaluate]\ngroups = 4\nspares = 2\n")
    assert evaluate("both.tltrace", "--config", "plain.toml", *words) == 0
    assert "simulating its failures instead, in goodput" in caplog.text
