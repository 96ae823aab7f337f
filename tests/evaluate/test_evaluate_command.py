"""``torchloom evaluate`` on the command line."""

import json
import shutil

import pytest
from msgspec.structs import replace

from tests.evaluate.episodes import (
    DAY_NS,
    HOUR_NS,
    NODES,
    START_NS,
    TORCHLOOM_TOML,
    some_events,
    write,
)
from torchloom_core.cli.app import app
from torchloom_core.floor.errors import TorchloomError
from torchloom_core.lab.evaluate import evaluation
from torchloom_core.lab.evaluate.evaluation import names_of
from torchloom_core.lab.evaluate.results import TraceResults

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "small.tltrace", some_events())
    (tmp_path / "torchloom.toml").write_text(TORCHLOOM_TOML)
    (tmp_path / "bare.toml").write_text("[evaluate]\ngroups = 4\n")
    deaf = "[evaluate]\ngroups = 4\n[policies.silence]\n[policies.lemon_nodes]\n"
    (tmp_path / "deaf.toml").write_text(deaf)
    expected = "[policies.failure_forecast]\npredictor = 'fault_history'\n"
    (tmp_path / "named.toml").write_text(expected)
    return tmp_path


def evaluate(*words):
    """Run the command; return its exit status."""
    return app(
        ["evaluate", *words], exit_on_error=False, print_error=False, result_action="return_value"
    )


def problem(*words):
    """Return the one line that a mistake is answered with."""
    with pytest.raises(TorchloomError) as error:
        evaluate(*words)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_policy_is_tested_and_the_report_is_written_as_table_json_and_page(folder, capsys):
    words = ("small.tltrace", "--policy", "failure_forecast", "--predictor", "fault_history")
    assert evaluate(*words, "--seeds", "2") == 0
    printed = capsys.readouterr().out
    assert "failure_forecast" in printed
    assert "small-evaluation/report.html" in printed
    report = reported(folder)
    assert report["simulation"]["seeds"] == [0, 1]
    assert any("fault_history" in arm["what"] for arm in report["simulation"]["arms"])
    page = (folder / "small-evaluation" / "report.html").read_text()
    assert "<html" in page
    assert not list((folder / "small-evaluation").rglob("*.part"))

    # Again, all is found: the same bytes.
    before = (folder / "small-evaluation" / "report.json").read_bytes()
    assert evaluate(*words, "--seeds", "2", "--json") == 0
    assert (folder / "small-evaluation" / "report.json").read_bytes() == before
    assert json.loads(capsys.readouterr().out) == json.loads(before)


def test_two_models_of_one_predictor_are_compared(folder, capsys):
    """In replay and in simulate, each under its own name, on time that neither was fitted on."""
    for name, days in (("old", "2d"), ("new", "3d")):
        fit(folder, name, days)
    words = ("--predictor", "fault_history=old.tlmodel", "--predictor", "fault_history=new.tlmodel")
    assert evaluate("small.tltrace", *words, "--mode", "replay") == 0
    old, new = reported(folder)["forecasts"]
    assert (old["predictor"], new["predictor"]) == ("fault_history=old", "fault_history=new")
    assert old["from_ns"] == new["from_ns"] > START_NS + 3 * DAY_NS
    assert "fault_history=new" in old["versus"]
    assert evaluate("small.tltrace", *words, "--seeds", "1") == 0
    report = reported(folder)
    names = [arm["name"] for arm in report["simulation"]["arms"]]
    assert names[-2:] == [f"failure_forecast(fault_history={name})" for name in ("old", "new")]
    assert "Runs begin no earlier than day 3.25, after" in " ".join(report["assumptions"])


def test_a_model_of_another_trace_is_scored_on_all_of_this_one(folder):
    fit(folder, "old", "3d")
    write(folder / "other.tltrace", some_events(seed=1, count=40))
    words = ("--predictor", "fault_history=old.tlmodel", "--mode", "replay")
    assert evaluate("other.tltrace", *words) == 0
    (score,) = reported(folder, "other")["forecasts"]
    assert score["from_ns"] < START_NS + DAY_NS


def fit(folder, name, days, *more):
    words = ("fit", "small.tltrace", "--predictor", "fault_history", "--until", days, *more)
    words += ("--out", f"{name}.tlmodel", "--tick-s", "3600")
    app([*words], exit_on_error=False, print_error=False, result_action="return_value")


def reported(folder, name="small"):
    (results,) = json.loads((folder / f"{name}-evaluation" / "report.json").read_bytes())["traces"]
    return results


def test_a_model_that_is_not_useful_is_refused_with_what_to_do_though_no_config_is_at_hand(folder):
    fit(folder, "old", "3d")
    (folder / "torchloom.toml").unlink()
    words = ("small.tltrace", "--policy", "failure_forecast", "--seeds", "1", "--days", "1")
    words += ("--predictor", "fault_history=old.tlmodel")
    (folder / "bare.toml").write_text("[evaluate]\ngroups = 4\nspares = 2\n")
    expected = problem(*words, "--config", "bare.toml")
    assert expected.startswith(
        "policy failure_forecast: need a useful model to act on, or accept_unskilled = true under "
        "[policies.failure_forecast] in a config file that --config names, was "
    )
    assert "old.tlmodel: No skill shown: need 20 failures in the scored time" in expected
    assert problem(*words) == expected
    with (folder / "bare.toml").open("a") as file:
        file.write("[policies.failure_forecast]\naccept_unskilled = true\n")
    assert evaluate(*words, "--config", "bare.toml") == 0
    # The config names the policy, so the command line need not.
    words = (*words[:1], *words[3:])
    assert evaluate(*words, "--config", "bare.toml") == 0
    (arm,) = (arm for arm in reported(folder)["simulation"]["arms"] if arm["kind"] == "candidate")
    assert arm["what"] == "all of bare.toml, with forecasts of fault_history"


def test_a_predictor_with_a_config_is_read_by_its_policies(folder):
    words = ("--config", "history.toml", "--predictor", "fault_history", "--seeds", "1")
    (folder / "history.toml").write_text(
        "[evaluate]\ngroups = 4\ndays = 0.5\n"
        "[predictors.fault_history]\nevery_s = 3600.0\nhorizon_s = 21600.0\n"
        "[policies.silence]\n[policies.failure_forecast]\npredictor = 'fault_history'\n"
    )
    assert evaluate("small.tltrace", *words) == 0
    (arm,) = (arm for arm in reported(folder)["simulation"]["arms"] if arm["kind"] == "candidate")
    assert arm["name"] == "history"


def test_nothing_before_until_is_played_and_no_model_was_fitted_after_it(folder):
    assert evaluate("small.tltrace", "--seeds", "3", "--until", "4d", "--days", "2") == 0
    report = reported(folder)
    assert {run["wall_s"] for run in report["simulation"]["runs"]} == {2 * 86_400.0}
    assert "Runs begin no earlier than day 4, after" in " ".join(report["assumptions"])
    fit(folder, "late", "3d")
    words = ("--predictor", "fault_history=late.tlmodel", "--until", "2d")
    assert "late.tlmodel: test_tuned_threshold" in problem("small.tltrace", *words)


def test_days_that_the_trace_does_not_have_are_refused(folder):
    there = "--days: need at most {} days, all that the trace has{}, was 9"
    assert problem("small.tltrace", "--days", "9") == there.format(6, "")
    words = ("small.tltrace", "--days", "9", "--until", "3.5d")
    assert problem(*words) == there.format(2.5, " after --until")
    fit(folder, "old", "2d")
    words = ("small.tltrace", "--days", "9", "--predictor", "fault_history=old.tlmodel")
    assert problem(*words) == there.format(3.75, " after the models' training")
    assert not (folder / "small-evaluation").exists()


def test_metrics_that_a_policy_needs_and_the_trace_has_not_are_named_once(folder, caplog):
    rules = "[[policies.thresholds.rules]]\nmetric = 'no_such_celsius'\nlevel = 1.0\n"
    silent = "[policies.silence]\nmetrics = ['no_such_total', 'gpu_temp_celsius']\n"
    optional = "[policies.checkpoint_interval]\n"  # reads the checkpoint time, if it is reported
    (folder / "blind.toml").write_text("[evaluate]\ngroups = 4\n" + rules + silent + optional)
    words = ("--config", "blind.toml", "--seeds", "1", "--days", "1", "--no-sensitivity")
    assert evaluate("small.tltrace", *words) == 0
    message = "{} reads metrics that the trace lacks: {}"
    assert [line for line in caplog.messages if "lacks" in line] == [
        message.format("policy thresholds", "no_such_celsius"),
        message.format("policy silence", "gpu_temp_celsius, no_such_total"),
    ]


def test_proposals_before_until_are_not_counted(folder):
    words = ("small.tltrace", "--mode", "replay", "--policy", "failure_forecast")
    words += ("--predictor", "fault_history")
    counts = []
    for until in ("2d", "5d"):
        evaluate(*words, "--until", until)
        counts.append(reported(folder)["policies"][0]["incidents"])
    assert counts[1] < counts[0]


@pytest.mark.parametrize("mode", ["simulate", "replay"])
def test_a_trace_that_was_changed_is_refused_before_anything_runs(folder, mode):
    write(folder / "heat.tltrace", some_events(), metrics=("heat",))
    words = ("heat.tltrace", "--mode", mode, "--predictor", "fault_history")
    for name in ("events.jsonl", "telemetry/000000.parquet"):
        path = folder / "heat.tltrace" / name
        was = path.read_bytes()
        path.write_bytes(was + b"\n")
        assert problem(*words).startswith(f"heat.tltrace/{name}: need sha256 ")
        path.write_bytes(was)
    assert not (folder / "heat-evaluation").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("--seeds", "1", "--no-sensitivity"),
        ("--mode", "replay", "--predictor", "fault_history"),
    ],
    ids=["simulate", "replay"],
)
def test_a_trace_that_is_replaced_meanwhile_is_refused(folder, monkeypatch, words):
    def replacing(bundles):
        shutil.rmtree(folder / "small.tltrace")
        write(folder / "small.tltrace", some_events(seed=1))
        return names_of(bundles)

    monkeypatch.setattr(evaluation, "names_of", replacing)
    assert "does not change while it is read, was replaced" in problem("small.tltrace", *words)
    assert not (folder / "small-evaluation" / "report.json").exists()


def test_a_trace_with_rows_available_too_early_is_refused(folder):
    early = [replace(one, t_avail=one.t_event - HOUR_NS) for one in some_events(count=5)]
    write(folder / "early.tltrace", early)
    expected = "early.tltrace/events.jsonl: future_feature: need t_avail >= t_event 2023-11-"
    assert expected in problem("early.tltrace")


def never(*_, **__):
    pytest.fail("a forecast was requested")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--scores mine=none.csv", "none.csv: cannot read as Parquet or CSV: No such file"),
        ("--scores mine=early.csv", "early.csv: need rows to score, was none from 2023-11-18"),
        ("--predictor ewma=no.tlmodel", "no.tlmodel: need a model, was nothing"),
        (
            "--predictor fault_history=old.tlmodel --until 2d",
            "old.tlmodel: test_tuned_threshold: need scored time from",
        ),
        (
            "--predictor survival --until 1h",
            "survival needs forecasts at least a horizon before 0.04167 d",
        ),
        (
            "--policy failure_forecast+thresholds --until 2d --config old.toml",
            "test_tuned_threshold",
        ),
    ],
)
def test_invalid_predictors_are_refused_before_the_first_forecast(folder, monkeypatch, words, text):
    fit(folder, "old", "3d")
    (folder / "early.csv").write_text(f"t,component,score\n{START_NS},{NODES[0]},0.5\n")
    (folder / "old.toml").write_text(
        "[predictors.fault_history]\nmodel = 'old.tlmodel'\n[policies.failure_forecast]\n"
        "predictor = 'fault_history'\naccept_unskilled = true\n"
    )
    monkeypatch.setattr("torchloom_core.lab.evaluate.forecasts.scoring.backtest_forecasts", never)
    before = () if "--config" in words else ("--predictor", "trend")
    assert text in problem("small.tltrace", "--mode", "replay", *before, *words.split())


def test_a_missing_metric_is_reported_before_the_first_forecast(folder, caplog, monkeypatch):
    write(folder / "warm.tltrace", some_events(), metrics=("heat",))
    (folder / "torchloom.toml").write_text("[predictors.trend]\nmetric = 'heta'\n")
    target = "torchloom_core.lab.evaluate.forecasts.scoring.backtest_forecasts"
    monkeypatch.setattr(target, lambda *_, **__: pytest.fail(caplog.text))
    words = ("--mode", "replay", "--predictor", "trend", "--policy", "failure_forecast")
    with pytest.raises(pytest.fail.Exception):
        evaluate("warm.tltrace", *words)
    message = "predictor trend reads metrics that the trace lacks: heta; did you mean heat?"
    assert caplog.messages == [message]


def test_without_sensitivity_costs_are_not_varied_and_the_rest_is_the_same(folder):
    words = ("small.tltrace", "--policy", "silence", "--seeds", "1")
    assert evaluate(*words, "--no-sensitivity") == 0
    without = reported(folder)["simulation"]
    played = len(list((folder / "small-evaluation" / "runs").iterdir()))
    assert evaluate(*words) == 0
    simulation = reported(folder)["simulation"]
    assert len(list((folder / "small-evaluation" / "runs").iterdir())) > played
    assert simulation["sensitivity"]
    assert without == {**simulation, "sensitivity": []}


def test_a_sweep_is_in_the_report_with_its_plot_in_the_folder(folder, capsys):
    words = ("small.tltrace", "--seeds", "1", "--no-sensitivity")
    assert evaluate(*words) == 0
    without = reported(folder)["simulation"]
    assert "sweep" not in without
    assert not (folder / "small-evaluation" / "sweep.svg").exists()
    assert evaluate(*words, "--sweep", "spares=0..3:3") == 0
    simulation = reported(folder)["simulation"]
    sweep = simulation.pop("sweep")
    assert simulation == without
    assert {name: [point["value"] for point in line] for name, line in sweep["lines"].items()} == {
        name: [0, 3] for name in ("restart", "per_step", "elastic", "elastic as planned")
    }
    picture = (folder / "small-evaluation" / "sweep.svg").read_text()
    assert picture.startswith("<svg")
    assert "useful GPU-h per day added by one more" in picture
    page = (folder / "small-evaluation" / "report.html").read_text()
    assert "How many spares to pay for" in page
    assert "per_step: too few seeds for a recommendation" in capsys.readouterr().out


def test_replay_scores_the_predictor_and_counts_what_the_policy_proposed(folder, capsys):
    words = ("--mode", "replay", "--predictor", "fault_history")
    words += ("--policy", "failure_forecast")
    assert evaluate("small.tltrace", *words, "--out", "there/it") == 0
    assert "AUPRC" in capsys.readouterr().out
    (report,) = json.loads((folder / "there" / "it" / "report.json").read_bytes())["traces"]
    assert [score["predictor"] for score in report["forecasts"]] == ["fault_history"]
    assert [policy["policy"] for policy in report["policies"]] == ["failure_forecast"]
    assert report["simulation"] is None


def test_replay_names_the_predictor_that_a_policy_reads(folder, capsys):
    """The config's predictor, though another one is selected and scored."""
    words = ("--mode", "replay", "--predictor", "fault_history")
    words += ("--policy", "failure_forecast", "--config", "named.toml")
    expected = (
        "[policies.failure_forecast]\npredictor = 'ewma'\n[predictors.ewma]\nmetric = 'heat'\n"
    )
    (folder / "named.toml").write_text(TORCHLOOM_TOML.partition("[policies")[0] + expected)
    assert evaluate("small.tltrace", *words) == 0
    (policy,) = reported(folder)["policies"]
    assert (policy["policy"], policy["what"]) == (
        "failure_forecast",
        "failure_forecast, with forecasts of ewma",
    )
    assert (
        "failure_forecast, with forecasts of ewma: "
        in (folder / "small-evaluation" / "report.html").read_text()
    )


def test_forecasts_that_were_made_elsewhere_are_scored(folder, capsys):
    hours = range(1, 24 * 6)
    rows = [f"{START_NS + h * HOUR_NS},{node},0.{h % 9}" for h in hours for node in NODES]
    (folder / "mine.csv").write_text("\n".join(["t,component,score", *rows]))
    words = ("--mode", "replay", "--scores", "mine=mine.csv")
    assert evaluate("small.tltrace", *words) == 0
    assert "mine" in capsys.readouterr().out
    assert reported(folder)["forecasts"][1]["horizon_s"] == 86_400.0
    assert evaluate("small.tltrace", *words, "--horizon-s", "7200") == 0
    assert reported(folder)["forecasts"][1]["horizon_s"] == 7200.0
    again = ("--scores", "mine=mine.csv")
    assert "need each name once, was 'mine' 2 times" in problem("small.tltrace", *words, *again)


def test_a_report_lists_its_assumptions(folder):
    evaluate("small.tltrace", "--seeds", "1")
    report = reported(folder)
    message = " ".join(report["assumptions"])
    for text in ("made up, CC0-1.0", "4 groups of 1 x 8 GPUs", "Not modelled", "Daly's"):
        assert text in message
    assert {*TraceResults.__struct_fields__} - {*report} == {
        "allreduce"
    }  # of another kind of trace


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("none.tltrace", "none.tltrace: need a trace bundle, was nothing: there is no such folder"),
        (
            "small.tltrace --policy stragler",
            "no installed policy has this name; did you mean straggler?",
        ),
        (
            "small.tltrace --policy membership",
            'policy membership: need recovery = "per_step" in [evaluate], was "restart"',
        ),
        ("small.tltrace --predictor fault_histry", "did you mean fault_history?"),
        ("small.tltrace --predictor fault_history=no.tlmodel", "no.tlmodel: need a model"),
        (
            "small.tltrace --config bare.toml --predictor falt_history",
            "did you mean fault_history?",
        ),
        ("small.tltrace --policy silence --predictor ewma", "need a --policy that reads it, was"),
        (
            "small.tltrace --config deaf.toml --predictor fault_history",
            "--predictor fault_history: need a --policy that reads it, was silence and lemon_nodes",
        ),
        (
            "small.tltrace --config named.toml --policy failure_forecast --predictor ewma",
            "--predictor ewma: need a --policy that reads it, was failure_forecast, which reads "
            "fault_history by the config",
        ),
        ("small.tltrace --predictor =a", "--predictor: need NAME or NAME=MODEL.tlmodel, was '=a'"),
        ("small.tltrace --scores mine", "--scores: need NAME=FILE, was 'mine'"),
        ("small.tltrace --predictor ewma --predictor ewma", "need each name once, was 'ewma' 2"),
        ("small.tltrace --policy silence --policy silence", "need each name once, was 'silence' 2"),
        ("small.tltrace --scores mine=a.csv", "--scores: need --mode replay"),
        ("small.tltrace --mode replay --days 3", "--days: need --mode simulate, was replay with 3"),
        (
            "small.tltrace --mode replay --scores random=a.csv",
            "--scores: need a name other than random, was 'random'",
        ),
        ("small.tltrace --mode replay --config bare.toml", "or --scores, was none"),
        (
            "small.tltrace --mode replay --scores mine=a.csv",
            "a.csv: cannot read as Parquet or CSV: No such file",
        ),
        ("small.tltrace --mode replay --until soon", "--until: need a date"),
        (
            "small.tltrace --until -3d",
            "--until: need a date such as 2024-06-30, 2024-06 or 2024, or a",
        ),
        (
            "small.tltrace --until 60d",
            "--until: need a time within the trace, 2023-11-14T22:13:20Z to 2023-11-20T22:13:20Z, "
            "was 2024-01-13T22:13:20Z",
        ),
        ("small.tltrace --sweep spares", "--sweep: need NAME=LOW..HIGH or NAME=LOW..HIGH:STEP"),
        (
            "small.tltrace --sweep spars=0..3",
            "--sweep: need spares or standbys, was 'spars'; did you mean spares?",
        ),
        ("small.tltrace --sweep spares=0..999", "--sweep: need 2 to 200 values, was 1000 in"),
        ("small.tltrace --sweep spares=0..8", "need 13 nodes for the job, its standbys and"),
        ("small.tltrace --mode replay --sweep spares=0..3", "--sweep: need --mode simulate"),
        ("small.tltrace --config none.toml", "none.toml: cannot be read"),
        ("small.tltrace --out bare.toml", "cannot be written: need a folder, was a file: "),
        ("none.tltrace --out bare.toml/a/b", "cannot be written: need a folder, was a file: "),
    ],
)
def test_a_mistake_is_answered_with_one_line(folder, words, text):
    assert text in problem(*words.split())


def test_an_empty_trace_is_one_line(folder):
    write(folder / "empty.tltrace", [])
    events = folder / "small.tltrace" / "events.jsonl"
    events.write_bytes(events.read_bytes()[:-30])
    assert "events.jsonl" in problem("small.tltrace")
    assert evaluate("empty.tltrace", "--seeds", "1") == 0


def test_of_two_models_of_one_predictor_the_one_that_looks_too_short_is_refused(folder):
    fit(folder, "short", "3d", "--option", "horizon_s=7200.0")
    fit(folder, "long", "3d")
    (folder / "slow.toml").write_text(
        TORCHLOOM_TOML.replace("[evaluate]", "[evaluate]\ntick_s = 7200.0")
    )
    words = ("small.tltrace", "--predictor", "fault_history=short.tlmodel", "--config", "slow.toml")
    words += ("--policy", "failure_forecast", "--predictor", "fault_history=long.tlmodel")
    assert "need less than the horizon of fault_history, 7200 s" in problem(*words)
