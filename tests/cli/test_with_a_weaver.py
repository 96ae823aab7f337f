import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deadlines import DEADLINE_S
from torchloom_core.floor.errors import RequestError

pytestmark = pytest.mark.integration


def test_status_shows_the_run(run, weaver):
    result = run.torchloom("status")
    assert result.returncode == 0, result.stderr
    for part in (
        "run digits",
        "ACTIONS ARE STOPPED",
        "g0-0",
        "node7",
        "41",
        "93% trend",
        "lr=0.1",
        "71.25",
        "c3.1",
        "accepted",
        "quarantined",
        "raised: x",
        "p3.4",
        "cordoned nodes: node7, node9 for 48h",
        ".torchloom/trajectory/digits",
    ):
        assert part in result.stdout


def test_status_as_json_is_the_weavers_answer(run, weaver):
    status = json.loads(run.torchloom("status", "--json").stdout)
    assert status["workers"][0]["step"] == 41
    assert status["workers"][0]["progress_age_s"] is None


def test_a_metric_can_be_chosen(run, weaver):
    shown = run.torchloom("status", "--metric", "step_time_s").stdout
    assert "step_time_s" in shown
    assert "71.25" not in shown


@pytest.mark.long
def test_watch_as_json_continues_without_a_weaver(run, weaver):
    command = [Path(sys.executable).with_name("torchloom"), "status", "--watch", "--json"]
    with subprocess.Popen(
        [*command, "--every", "0.01"], cwd=run.path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert json.loads(process.stdout.readline())["run"] == "digits"
        weaver.result = "broken"
        warning = process.stderr.readline()
        weaver.result = "done"
        for _ in range(300):  # more than fits into the pipe
            assert json.loads(process.stdout.readline())["run"] == "digits"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert warning == b"warning: the fleet is on fire; retrying\n"
    assert (process.returncode, errors) == (130, b"")


@pytest.mark.long
def test_knobs_are_listed_with_range_and_values(run, weaver):
    shown = run.torchloom("knob", "list").stdout
    for part in ("lr", "float 0..1", "g0-0: 0.1", "g1-0: 0.2"):
        assert part in shown
    assert json.loads(run.torchloom("knob", "list", "--json").stdout)["specs"][0]["name"] == "lr"


@pytest.mark.long
def test_one_knob_is_shown_on_every_worker_or_on_one(run, weaver):
    assert "g1-0 0.2" in run.torchloom("knob", "get", "lr").stdout
    assert run.torchloom("knob", "get", "lr", "--worker", "g0-0").stdout == "0.1\n"
    as_json = json.loads(run.torchloom("knob", "get", "lr", "--json").stdout)
    assert as_json["values"] == {"g0-0": 0.1, "g1-0": 0.2}


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ("knob get lrr", 2, "no knob is called 'lrr'; did you mean lr?"),
        ("knob get lr --worker g0-1", 5, "no worker 'g0-1' has knob lr; did you mean g0-0"),
    ],
)
def test_an_unknown_knob_or_worker_is_one_line(run, weaver, words, status, message):
    result = run.torchloom(*words.split())
    assert result.returncode == status
    assert result.stderr.startswith(f"torchloom: {message}")
    assert result.stderr.count("\n") == 1


@pytest.mark.long
@pytest.mark.parametrize(("text", "value"), [("-1", -1), ("bf16", "bf16")])
def test_a_value_is_parsed_as_json_or_text(run, weaver, text, value):
    result = run.torchloom("knob", "set", "lr", text, "--worker", "g0-0")
    assert result.returncode == 0, result.stderr
    ((verb, body),) = weaver.requests
    assert verb == "knob.set"
    assert body == {"knob": "lr", "value": value, "worker": "g0-0"}
    assert type(body["value"]) is type(value)


@pytest.mark.long
def test_every_request_has_its_own_id(run, weaver):
    for _ in range(2):
        run.torchloom("knob", "set", "lr", "0.01", "--wait", "0")
    run.torchloom("actions", "stop")
    one, two, none = weaver.ids
    assert len({one, two}) == 2
    assert all(re.fullmatch("[0-9a-f]{32}", sent_as) for sent_as in (one, two))
    assert none is None


def test_yes_marks_the_value_as_sure(run, weaver):
    run.torchloom("knob", "set", "lr", "20", "--yes", "--wait", "0")
    assert weaver.requests == [("knob.set", {"knob": "lr", "value": 20, "sure": True})]


ALONE = "lr is worker-fenced: each worker applies it at its own next step"


def test_knob_set_prints_each_status_and_ends_with_its_outcome(run, weaver):
    lines = run.torchloom("knob", "set", "lr", "0.01").stdout.splitlines()
    assert lines == [
        "granted: c3.1",
        "c3.1 set_knob to g0-0 issued at step 41",
        "c3.1 set_knob to g0-0 applied at step 41",
        "done: what came of p3.1",
        ALONE,
    ]


def test_several_knobs_are_set_together_with_a_guard(run, weaver):
    words = ["knob", "set", "lr=0.01", "mode", "bf16", "--watch", "loss", "--band", "4"]
    run.torchloom(*words, "--window", "20", "--wait", "0")
    guard = {"metric": "loss", "band": 4.0, "window_s": 20.0}
    body = {"knob": "lr", "value": 0.01, "also": {"mode": "bf16"}, "guard": guard}
    assert weaver.requests == [("knob.set", body)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("lr 0.01 mode", "knob set: need a value after 'mode', was nothing"),
        ("lr 0.01 lr=0.02", "knob set: 'lr' is given twice"),
        ("lr 0.01 --window 9", "knob set: --band and --window need --watch METRIC"),
    ],
)
def test_an_invalid_knob_set_is_one_line_and_sends_nothing(run, weaver, words, message):
    result = run.torchloom("knob", "set", *words.split())
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert weaver.requests == []


def test_without_waiting_only_the_answer_is_printed(run, weaver):
    weaver.result = "never"
    result = run.torchloom("knob", "set", "lr", "0.01", "--wait", "0")
    assert result.returncode == 0
    assert result.stdout == f"granted: c3.1\n{ALONE}\n"


@pytest.mark.long
@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("denied", "torchloom: denied by cooldown: 12 s to go\n"),
        ("undone", "torchloom: undone: what came of p3.1\n"),
        ("never", "torchloom: not finished after 0.5 s; it continues: see torchloom status\n"),
    ],
)
def test_a_refusal_a_failure_and_a_timeout_are_one_line(run, weaver, result, message):
    weaver.result = result
    ended = run.torchloom("knob", "set", "lr", "0.01", "--wait", "0.5")
    assert ended.returncode == 5
    assert ended.stderr == message


PAIRS = [["g0-0", "g1-0"], ["g2-0", "g3-0"]]


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "action"),
    [
        ("migrate g0", {"group": "g0"}),
        ("admit g0", {"group": "g0"}),
        ("drain g0", {"group": "g0"}),
        ("evict g0 --then wait", {"group": "g0", "then": "wait"}),
        ("checkpoint", {"group": None}),
        ("pause", {}),
        ("resume", {}),
        ("landscape --end", {"points": 0}),
        ("preview --end", {"steps": 0}),
        ("dump g0-0", {"worker": "g0-0"}),
        (
            "probe g0-0 g1-0 g2-0 g3-0 --probe-bytes 700000",
            {"pairs": PAIRS, "probe_bytes": 700000},
        ),
        ("cordon n7 --for 1h30m", {"node": "n7", "lasts_s": 5400.0}),
        ("cordon n7 --for 1w0.5d15min", {"node": "n7", "lasts_s": 648_900.0}),
        ("uncordon n7", {"node": "n7"}),
    ],
)
def test_every_action_has_a_command_that_proposes_it(run, weaver, words, action):
    result = run.torchloom(*words.split())
    assert result.returncode == 0, result.stderr
    action = {"kind": words.split()[0], **action}
    assert weaver.requests == [("propose", {"action": action})]


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "verb", "body"),
    [
        ("approve p3.4", "approve", {"proposal": "p3.4"}),
        ("deny p3.4 --reason no", "deny", {"proposal": "p3.4", "reason": "no"}),
        ("actions stop", "actions.stop", None),
        ("actions resume", "actions.resume", None),
    ],
)
def test_every_command_sends_its_verb(run, weaver, words, verb, body):
    result = run.torchloom(*words.split())
    assert result.returncode == 0, result.stderr
    assert weaver.requests == [(verb, body)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "price"),
    [
        ("--steps 50", "10 GPU-s of one standby: 2 x 5 x 50 steps of 0.02 s each"),
        ("--steps 900 --for 5s", "5 GPU-s of one standby: 2 x 5 x 900 steps of 0.02 s each"),
    ],
)
def test_the_cost_of_a_preview_is_printed_without_a_request(run, weaver, words, price):
    result = run.torchloom("preview", "lr=0.02", "--price", *words.split())
    assert (result.returncode, result.stdout) == (0, f"at most {price}\n")
    assert not weaver.requests


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("probe g0-0 g1-0 g2-0", "probe: need a receiver after 'g2-0', was nothing"),
        ("probe g0-0 g0-0", "probe: pairs: need each worker once, was g0-0 twice"),
        (
            "probe g0-0 g1-0 --probe-bytes 10",
            'Invalid value "10" for --probe-bytes. Must be >= 655360.',
        ),
    ],
)
def test_an_invalid_probe_is_refused_without_a_request(run, weaver, words, message):
    result = run.torchloom(*words.split())
    assert result.returncode in (RequestError.exit_code, 2)
    assert result.stderr == f"torchloom: {message}\n"
    assert not weaver.requests


@pytest.mark.long
def test_a_request_has_the_name_in_the_credentials(run, weaver):
    run.torchloom("actions", "stop")
    assert weaver.names == {"operator"}
    written = run.torchloom("credentials", "create", "alice", "--out", "alice.creds")
    text = "wrote alice.creds: alice, operator, passes it with --creds or NATS_CREDS\n"
    assert written.stdout == text
    assert (run.path / "alice.creds").stat().st_mode & 0o777 == 0o600
    assert run.torchloom("actions", "stop", "--creds", "alice.creds").returncode == 0
    assert weaver.names == {"operator", "alice"}
    viewer = ("credentials", "create", "bo", "--role", "viewer", "--days", "1")
    assert run.torchloom(*viewer).returncode == 0
    refused = run.torchloom("actions", "stop", "--creds", "bo.creds")
    assert refused.returncode == RequestError.exit_code
    assert refused.stderr == (
        "torchloom: actions.stop: need credentials of an admin or operator, these are of the "
        "viewer bo\n"
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ("credentials create a.b", 2, "need a name of 1 to 64 of A-Z a-z 0-9 _ -, was 'a.b'"),
        (
            "credentials create operator",
            2,
            "need another name: operator is the name of the default",
        ),
        (
            "credentials create bob --out torchloom.toml",
            4,
            "torchloom.toml exists already: give another",
        ),
    ],
)
def test_invalid_names_and_existing_files_are_one_line(run, words, status, message):
    result = run.torchloom(*words.split())
    assert (result.returncode, result.stderr.count("\n")) == (status, 1)
    assert result.stderr.startswith(f"torchloom: {message}")


def test_a_broker_without_a_weaver_is_one_line(run):
    result = run.torchloom("status")
    assert result.returncode == 5
    assert result.stderr.count("\n") == 1
    assert "no Weaver of run digits answers" in result.stderr


@pytest.mark.parametrize("words", [["status"]])
def test_a_weaver_that_cannot_answer_is_one_line(run, weaver, words):
    weaver.result = "broken"
    result = run.torchloom(*words)
    assert result.returncode == 5
    assert result.stderr == "torchloom: the fleet is on fire\n"
