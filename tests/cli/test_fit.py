"""``torchloom fit`` on the command line."""

import json
import signal

import pytest

from tests.cli.test_without_a_weaver import is_one_line
from tests.evaluate.traces import write_bundle
from torchloom_core.cli import Terminated
from torchloom_core.cli.app import app

pytestmark = [pytest.mark.integration, pytest.mark.slow]

QUICK = [
    *("fit", "t.tltrace", "--predictor", "fault_history", "--until", "60d"),
    *("--tick-s", "43200", "--every-s", "86400"),
    *("--option", "horizon_s=172800"),
]


@pytest.fixture
def trace(folder):
    """120 days of 20 nodes, some of which fail more often."""
    write_bundle(folder.path / "t.tltrace", rate=0.03)
    return folder


def test_a_model_is_written_and_its_skill_is_printed(trace):
    result = trace.torchloom(*QUICK)
    assert result.returncode == 0, result.stderr
    for text in ("prevalence", "alarm precision", "random", "wrote fault_history.tlmodel"):
        assert text in result.stdout
    assert "Useful: AUPRC is above that of a random score by +" in result.stdout
    assert (trace.path / "fault_history.tlmodel" / "card.md").is_file()
    (trace.path / "torchloom.toml").write_text(
        "[predictors.fault_history]\nmodel = 'fault_history.tlmodel'\n"
    )
    plugins = json.loads(trace.torchloom("plugins", "--json").stdout)
    (row,) = (row for row in plugins if row["active"])
    assert row["model"]["verdict"] == "useful"
    assert row["model"]["sentence"] in result.stdout.splitlines()
    is_one_line(trace.torchloom(*QUICK), 7, "exists already")
    again = trace.torchloom(*QUICK, "--force", "--json")
    assert json.loads(again.stdout)["score"]["predictor"] == "fault_history"


def test_auto_takes_the_best_candidate_and_shows_all(trace):
    words = ["auto" if word == "fault_history" else word for word in QUICK]
    result = trace.torchloom(*words)
    assert result.returncode == 0, result.stderr
    assert "candidates, scored within the training time" in result.stdout
    card = json.loads((trace.path / "auto.tlmodel" / "card.json").read_text())
    best = max(card["tried"], key=lambda one: sum(value or 0.0 for value in one["auprc"]))
    assert best["candidate"] == card["predictor"]
    usage = f"--predictor {card['predictor']}=auto.tlmodel"
    assert result.stdout.endswith(f"wrote auto.tlmodel; use it with {usage}\n")
    assert {"boosting", "fault_history", "logistic", "one_rule"} <= {
        one["candidate"] for one in card["tried"]
    }


def test_the_repair_time_is_that_of_the_option_or_the_config(trace):
    (trace.path / "torchloom.toml").write_text("[evaluate]\nrepair_s = 7200.0\n")
    for words, expected in (((), 7200.0), (("--repair-s", "3600"), 3600.0)):
        result = trace.torchloom(*QUICK, "--force", *words)
        assert result.returncode == 0, result.stderr
        model = json.loads((trace.path / "fault_history.tlmodel" / "model.json").read_text())
        assert model["repair_s"] == expected


def test_a_model_without_skill_is_no_error(folder):
    write_bundle(folder.path / "t.tltrace", rate=0.003, days=100)
    result = folder.torchloom(*QUICK, "--out", "a/none.tlmodel")
    assert result.returncode == 0, result.stderr
    assert "No skill shown:" in result.stdout
    assert (folder.path / "a" / "none.tlmodel" / "model.json").is_file()


@pytest.mark.parametrize(
    ("words", "status", "problem"),
    [
        ("--predictor fault_histroy", 2, "did you mean fault_history?"),
        ("--until 60", 2, "--until: need a date such as 2024-06-30, 2024-06 or 2024, or a"),
        ("--until 600d", 6, "need --until within the 120 days of the trace, 1970-01-01 to"),
        ("--until 1970-01-01", 6, "need --until within the 120 days of the trace"),
        ("--kind crahs", 6, "need a kind of its events, was 'crahs'; did you mean crash?"),
        ("--option horizon=3", 2, "--option: predictors.fault_history.horizon: unknown key"),
        (
            "--option fit_half_lives_s=60",
            2,
            "fit_half_lives_s: need a list such as [1.5, 2], was 60",
        ),
        (
            "--option fit_half_lives_s=[a,b]",
            2,
            """--option: need a TOML list in shell quotes, such as """
            """'fit_half_lives_s=["a", "b"]' or 'fit_half_lives_s=[1, 2]', was [a,b]""",
        ),
        (
            '--option metrics=["heta"]',
            2,
            "--option metrics: need a metric of t.tltrace, was 'heta'",
        ),
        ("--option horizon_s", 2, "--option: need NAME=VALUE, was 'horizon_s'"),
        ("--out x.tltmodel", 7, "x.tltmodel: need the suffix .tlmodel, was .tltmodel"),
        ("--out t.tltrace --force", 7, "need the suffix .tlmodel, was .tltrace"),
        ("--out other.tlmodel --force", 7, "--force replaces only models, and this is none"),
        ("--out t.tltrace/manifest.json/x.tlmodel", 7, "need a folder, was a file: "),
        ("--task forecats", 2, "forecats"),
        ("--tick-s 1e300", 2, "Must be <= 1000000000.0."),
        ("--every-s inf", 2, "Must be <= 1000000000.0."),
        ("--false-alarms-per-node-day inf", 2, "Must be <= 1000000000.0."),
        ("--seed -1", 2, "Must be >= 0."),
        ("--tick-s 1e-9", 6, "need at most 100000000 ticks in its span, was tick_s 1e-09"),
    ],
)
def test_a_mistake_is_one_line(trace, words, status, problem):
    (trace.path / "other.tlmodel").mkdir()
    command = QUICK.copy()
    for name, value in zip(words.split()[::2], words.split()[1::2], strict=False):
        if name in QUICK:
            command[command.index(name) + 1] = value
        else:
            command += [name, value]
    command += [word for word in words.split() if word == "--force"]
    is_one_line(trace.torchloom(*command), status, problem)


def test_a_missing_trace_is_one_line(folder):
    is_one_line(
        folder.torchloom(*QUICK),
        6,
        "t.tltrace: need a trace bundle, was nothing: there is no such folder",
    )


def test_a_changed_trace_is_refused(trace):
    events = trace.path / "t.tltrace" / "events.jsonl"
    events.write_bytes(events.read_bytes().replace(b"crash", b"fault", 1))
    is_one_line(trace.torchloom(*QUICK), 6, "t.tltrace/events.jsonl: need sha256 ")
    assert not (trace.path / "fault_history.tlmodel").exists()


def test_a_trace_without_a_failure_is_one_line(folder):
    write_bundle(folder.path / "t.tltrace", rate=0.0, days=30, nodes=3)
    command = [*QUICK]
    command[command.index("60d")] = "20d"
    is_one_line(folder.torchloom(*command), 2, "need a failure to learn from, was none in")


@pytest.mark.parametrize("there", [False, True], ids=["new", "replaced"])
def test_sigterm_ends_a_fit_as_an_interrupt_does(trace, monkeypatch, capsys, there):
    def terminated(*_, **__):
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.chdir(trace.path)
    monkeypatch.setattr("torchloom_core.lab.fitting.fit.fit", terminated)
    handled = signal.getsignal(signal.SIGTERM)
    if there:
        (trace.path / "fault_history.tlmodel").mkdir()
        (trace.path / "fault_history.tlmodel" / "model.json").touch()
    with pytest.raises(Terminated):
        app([*QUICK, "--force"], exit_on_error=False, print_error=False)
    last = capsys.readouterr().err.splitlines()[-1]
    what = "is unchanged" if there else "was not written"
    assert last == f"torchloom: interrupted; fault_history.tlmodel {what}"
    assert signal.getsignal(signal.SIGTERM) == handled
