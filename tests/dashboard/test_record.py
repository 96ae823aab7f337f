"""One story has all that became of a proposal, from who asked to what it did."""

import msgspec
import pytest

from tests.dashboard.records import since
from torchloom_core.capabilities.migrate import Migrate
from torchloom_core.live.dashboard.record import MOST_LINES, MOST_STORIES, Record
from torchloom_core.wire.actions import ChangeKnobs
from torchloom_core.wire.decisions import (
    CommandStatus,
    Judged,
    Notice,
    Outcome,
    Proposal,
    Proposed,
    Verdict,
)
from torchloom_core.wire.events import Forecast
from torchloom_core.wire.messages import Note

NOW_S = 1e9
RATE = ChangeKnobs(values={"lr": 0.5})


@pytest.fixture
def record():
    return Record()


def tell(record, message, at_s=NOW_S):
    kind = message.__struct_config__.tag
    record.take(kind, msgspec.json.encode(message), at_s)


def propose(record, number=1, action=RATE, policy="tuner", **more):
    proposal = Proposal(action=action, reason="it is slow", **more)
    tell(record, Proposed(id=f"p1.{number}", policy=policy, proposal=proposal))


def decide(
    record, number=1, action=RATE, policy="tuner", granted=True, rule="net_gain", reason="because"
):
    verdict = Verdict(
        proposal=f"p1.{number}",
        policy=policy,
        action=action,
        granted=granted,
        rule=rule,
        reason=reason,
        net_gpu_s=1.0,
    )
    tell(record, verdict)


def gone(record, version):
    return record.since(version)["merged"]


def life(record, worker, status, step=-1, cause="p1.1", detail=""):
    tell(
        record,
        CommandStatus(
            command=f"c-{worker}",
            worker=worker,
            status=status,
            verb="set_knob",
            cause=cause,
            step=step,
            detail=detail,
        ),
    )


def test_a_story_goes_from_the_proposal_to_what_it_did(record):
    propose(record, gain_gpu_s=100.0, cost_gpu_s=2.0, confidence=0.5)
    decide(record)
    for worker in ("g0-0", "g1-0", "g2-0"):
        life(record, worker, "issued")
        life(record, worker, "delivered")
    for worker in ("g0-0", "g1-0"):
        life(record, worker, "applied", step=40)
    life(record, "g2-0", "expired", detail="it has ended")
    done = Outcome(
        verdict="p1.1", policy="tuner", action=RATE, result="partial", detail="2 of 3", took_s=1.0
    )
    tell(record, done)
    tell(record, Judged(verdict="p1.1", hurt=False, text="loss 2.1", before={"lr": 0.1}))
    (story,) = since(record, "stories")
    assert (story.by, story.summary, story.reason) == ("tuner", "knobs lr = 0.5", "it is slow")
    assert (story.gain_gpu_s, story.cost_gpu_s, story.confidence) == (100.0, 2.0, 0.5)
    assert (story.granted, story.rule, story.detail) == (True, "net_gain", "because")
    assert story.commands == {"applied": 2, "expired": 1}
    assert story.steps == {40: 2}
    assert story.failures == ["g2-0 expired: it has ended"]
    assert story.outcome == "partial: 2 of 3"
    assert story.judged == "did no harm: loss 2.1"


def test_a_repeated_verdict_is_shown_once(record):
    propose(record)
    decide(record, reason="it is slow")
    (story,) = since(record, "stories")
    assert (story.reason, story.rule, story.detail) == ("it is slow", "net_gain", "")


def test_a_story_says_when_each_of_its_moments_came_first(record):
    proposal = Proposal(action=RATE, reason="it is slow")
    update = [
        Proposed(id="p1.1", policy="tuner", proposal=proposal),
        Verdict(
            proposal="p1.1",
            policy="tuner",
            action=RATE,
            granted=True,
            rule="net_gain",
            reason="because",
            net_gpu_s=1.0,
        ),
        *(
            CommandStatus(
                command=f"c{n}", worker=f"g{n}-0", status=s, verb="set_knob", cause="p1.1"
            )
            for n, s in ((0, "issued"), (1, "issued"), (0, "delivered"), (0, "applied"))
        ),
        Outcome(verdict="p1.1", policy="tuner", action=RATE, result="done", detail="", took_s=1.0),
        Judged(verdict="p1.1", hurt=False, text="loss 2.1", before={}),
    ]
    for second, message in enumerate(update):
        tell(record, message, NOW_S + second)
    (story,) = since(record, "stories")
    assert {word: at_s - NOW_S for word, at_s in story.moments.items()} == {
        "proposed": 0,
        "verdict": 1,
        "issued": 2,
        "applied": 5,
        "outcome": 6,
        "judged": 7,
    }


def test_a_proposal_that_waits_has_the_time_of_that_and_of_its_end(record):
    propose(record)
    for second, (granted, rule) in enumerate([(False, "approval"), (True, "person")]):
        verdict = Verdict(
            proposal="p1.1",
            policy="tuner",
            action=RATE,
            granted=granted,
            rule=rule,
            reason="waits 300 s for approval",
            net_gpu_s=1.0,
        )
        tell(record, verdict, NOW_S + 8 * second)
        (story,) = since(record, "stories")
        assert "verdict" in story.moments or not granted
    assert (story.moments["waits"], story.moments["verdict"]) == (NOW_S, NOW_S + 8)


def test_a_proposal_that_repeats_a_waiting_one_does_not_wait(record):
    propose(record)
    decide(record, granted=False, rule="approval", reason="p1.0 already waits for approval")
    (story,) = since(record, "stories")
    assert set(story.moments) == {"proposed", "verdict"}


def test_a_story_names_the_command_that_it_led_to(record):
    decide(record)
    life(record, "g0-0", "issued")
    life(record, "g1-0", "issued")
    (story,) = since(record, "stories")
    assert story.command == "c-g0-0"


def add_forecast(record, predictor="trend", **hazard):
    said = Forecast(
        id="f1",
        predictor=predictor,
        horizon_s=600.0,
        hazard={name.replace("_", "-"): value for name, value in hazard.items()},
        why={"g1-0": "it is hot"},
    )
    record.add_forecast(said, NOW_S)


def test_a_forecast_is_a_line_when_somebody_is_newly_at_risk(record):
    add_forecast(record, g0_0=0.05)
    assert since(record, "lines") == []
    for hazard in (0.2, 0.3, 0.2):
        add_forecast(record, g0_0=0.05, g1_0=hazard)
    (line,) = since(record, "lines")
    assert (line.kind, line.worker) == ("forecast", "g1-0")
    assert line.text == "trend within 600 s: g1-0 20%: it is hot"
    add_forecast(record, g0_0=0.4, g1_0=0.2)
    add_forecast(record, "other", g1_0=0.2)
    add_forecast(record)
    add_forecast(record, g1_0=0.2)
    assert [line.text.partition(":")[0] for line in since(record, "lines", line.version)] == [
        "trend within 600 s",
        "other within 600 s",
        "trend within 600 s",
    ]


def test_only_changes_are_sent_again(record):
    propose(record, 1)
    propose(record, 2, policy="other")
    seen = record.version
    assert since(record, "stories", seen) == []
    decide(record, 1)
    assert [story.id for story in since(record, "stories", seen)] == ["p1.1"]


def test_what_is_denied_again_and_again_is_one_story_with_how_often(record):
    for number in range(1, 101):
        propose(record, number)
        decide(record, number, granted=False, rule="cooldown")
    (story,) = since(record, "stories")
    assert (story.id, story.times) == ("p1.100", 100)
    propose(record, 101)
    decide(record, 101, granted=False, rule="min_groups")
    propose(record, 102, action=Migrate(group="g1"))
    decide(record, 102, action=Migrate(group="g1"), granted=False, rule="cooldown")
    assert [story.times for story in since(record, "stories")] == [100, 1, 1]


@pytest.mark.parametrize("looks_every", [1, 2, 7])
def test_a_page_that_is_open_forgets_a_story_that_has_gone_into_another(record, looks_every):
    known, seen = {}, 0
    for number in range(1, 15):
        propose(record, number)
        if number % looks_every:
            decide(record, number, granted=False, rule="cooldown")
            continue
        for look in ("proposed", "denied"):
            known = {i: story for i, story in known.items() if i not in gone(record, seen)}
            known |= {story.id: story for story in since(record, "stories", seen)}
            seen = record.version
            if look == "proposed":
                decide(record, number, granted=False, rule="cooldown")
    assert [(story.id, story.times) for story in known.values()] == [("p1.14", 14)]
    for number in range(2 * MOST_LINES):
        decide(record, number, granted=False, rule="cooldown")
    assert len(gone(record, 0)) <= MOST_LINES + MOST_LINES // 4


@pytest.mark.parametrize("end", [(False, "expiry"), (True, "person")])
def test_what_has_waited_for_a_person_keeps_its_reason_and_its_price(record, end):
    granted, rule = end
    for first in (1, 11):
        propose(record, first, gain_gpu_s=80.0, cost_gpu_s=1.5)
        decide(record, first, granted=False, rule="approval", reason="waits 300 s for approval")
        for number in range(first + 1, first + 10):
            propose(record, number)
            text = f"p1.{first} already waits for approval"
            decide(record, number, granted=False, rule="approval", reason=text)
        decide(record, first, granted=granted, rule=rule)
    update = {story.id: story for story in since(record, "stories")}
    assert [(story_id, story.times) for story_id, story in update.items()] == [
        ("p1.10", 9),
        ("p1.1", 1),
        ("p1.20", 9),
        ("p1.11", 1),
    ]
    for story in (update["p1.1"], update["p1.11"]):
        assert (story.granted, story.rule, story.reason) == (granted, rule, "it is slow")
        assert (story.gain_gpu_s, story.cost_gpu_s) == (80.0, 1.5)
        assert "proposed" in story.moments


def test_what_waited_for_a_person_waits_no_more_once_another_weaver_decides(record):
    for number in (1, 2):
        propose(record, number, action=Migrate(group=f"g{number}"))
        decide(record, number, granted=False, rule="approval", reason="waits 300 s for approval")
    before = record.version
    record.forget_waiting({"p1.1", "p1.7"})
    (story,) = since(record, "stories", before)
    assert (story.id, story.granted, story.rule) == ("p1.1", False, "expiry")
    assert story.detail == "the Weaver restarted before it was approved"


def test_a_decision_whose_start_was_missed_is_shown_from_there(record):
    decide(record)
    life(record, "g0-0", "applied", step=3)
    life(record, "g0-0", "applied", step=3, cause="p9.9")
    (story,) = since(record, "stories")
    assert story.steps == {3: 1}


def test_all_else_is_a_line_of_plain_characters(record):
    tell(record, Notice(kind="fault", text="hang of <b>g0-0</b>\n\x1b[2J", worker="g0-0"))
    (line,) = since(record, "lines")
    assert (line.kind, line.worker) == ("fault", "g0-0")
    assert line.text == "hang of <b>g0-0</b> \\x1b[2J"
    assert since(record, "lines", line.version) == []


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("verdict", {}),
        ("verdict", {"proposal": 1, "policy": None, "action": [], "granted": "no"}),
        ("proposed", {"id": "p", "policy": "x", "proposal": {"action": {"kind": "of later"}}}),
        ("command_status", {"cause": ["p1.1"]}),
        ("notice", {}),
        ("of a later version", {"a": 1}),
        ("outcome", {"verdict": "p1.1"}),
    ],
)
def test_what_is_no_message_of_ours_is_passed_over(record, kind, body):
    update = [msgspec.json.encode(body), b"", b"[1]", b"{", b"\xff", b"[" * 10_000]
    for data in update:
        record.take(kind, data, NOW_S)
    propose(record)
    for data in update:
        record.take(kind, data, NOW_S)
    assert any(story.by == "tuner" for story in since(record, "stories"))


def test_the_record_is_bounded(record):
    for number in range(2 * MOST_STORIES):
        propose(record, number, action=Migrate(group=f"g{number}"))
    for number in range(2 * MOST_LINES):
        tell(record, Notice(kind="hello", text=f"{number}"))
    assert len(since(record, "stories")) == MOST_STORIES
    lines = since(record, "lines")
    assert MOST_LINES <= len(lines) <= MOST_LINES + MOST_LINES // 4
    assert lines[-1].text == f"{2 * MOST_LINES - 1}"


def test_a_trainers_own_lines_are_kept_apart(record):
    who = {"run": "run", "worker": "g0-0", "incarnation": 1}
    fields = {"level": "error", "logger": "mine", "text": "no\n\x1b[2J<b>", "dropped": 3}
    record.log(Note(**who, kind="log", fields=fields), NOW_S)
    (line,) = since(record, "logs")
    assert (line.kind, line.worker) == ("error", "g0-0")
    assert line.text == "mine: no\n\\x1b[2J<b> (3 lines before it were dropped)"
    assert since(record, "lines") == []
    fields = {"level": "\u202e" * 99, "text": "x" * 10**6, "dropped": "\x1b[2J" * 10**5}
    record.log(Note(**who, kind="log", fields=fields), NOW_S)
    long = since(record, "logs")[-1]
    assert (long.kind + long.text).isprintable()
    assert len(long.kind) + len(long.text) < 2000
    trace = "Traceback:\n  File 'x'\n" + "\n".join(f"\tline {n}" for n in range(900))
    record.log(Note(**who, kind="log", fields={"text": f"{trace}\nOSError: no"}), NOW_S)
    update = since(record, "logs")[-1].text.split("\n")
    assert update[:2] == [": Traceback:", "  File 'x'"]
    assert update[-2:] == ["    line 899", "OSError: no"]
    assert len("".join(update)) < 2000
    for number in range(2 * MOST_LINES):
        record.log(Note(**who, kind="log", fields={"text": f"{number}"}), NOW_S)
    assert len(since(record, "logs")) <= MOST_LINES + MOST_LINES // 4


def test_a_change_keeps_the_values_to_go_back_to(record):
    record.knob_values = {"lr": 0.1, "momentum": 0.9}
    propose(record)
    decide(record)
    (story,) = since(record, "stories")
    assert (story.action["kind"], story.action["values"]) == ("knobs", {"lr": 0.5})
    assert story.before == {"lr": 0.1}
    assert record.knob_values == {"momentum": 0.9}, "a second change would go back too far"
    tell(record, Judged(verdict="p1.1", hurt=False, text="loss 2.1", before={"lr": 0.2}))
    (story,) = since(record, "stories")
    assert story.before == {"lr": 0.2}
    propose(record, 2, action=Migrate(group="g1"))
    assert since(record, "stories", story.version)[0].before == {}
