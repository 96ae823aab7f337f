"""The judge of the chaos says what is of our making, from what a run left behind."""

import json

import msgspec
import pytest

from experiments.chaos import commands, judge, record, script
from experiments.chaos.moments import Span, disturbances, down, overlap_s
from torchloom_core.wire.events import CommandStatus, Issue
from torchloom_core.wire.messages import Command, SetKnob

SECOND_NS = 1_000_000_000
DEADLINE_S = 20.0


def command(number, value):
    return Command(
        id=f"c1.{number}",
        run="chaos",
        worker="g0-0",
        incarnation=7,
        epoch=1,
        issued_ns=100 * SECOND_NS,
        deadline_ns=round((100 + DEADLINE_S) * SECOND_NS),
        do=SetKnob(knob="tally", value=value),
        cause="p1.1",
    )


@pytest.fixture
def told():
    """A record of one command to a trainer whose process is 42; ``end`` writes how it ended."""
    return tell(commands.Told(pids={42: ("g0-0", 7)}), command(1, 5))


def tell(told, issued, *ends, at_s=101.0):
    life = CommandStatus(
        command=issued.id, worker="g0-0", status="issued", verb="set_knob", cause="p1.1"
    )
    take(told, Issue(command=issued), 100.0)
    for status, t in [("issued", 100.0), *((end, at_s) for end in ends)]:
        take(told, msgspec.structs.replace(life, status=status), t)
    return told


def take(told, output, t):
    commands._take(told, output.__struct_config__.tag, t, msgspec.to_builtins(output))


def found(told, away=(), requests=()):
    return {kind: lines for kind, lines in commands.faults(told, requests, away).items() if lines}


def test_a_command_without_an_end_is_lost_and_one_with_two_is_doubled(told):
    assert found(told) == {"lost": ["c1.1 (set_knob to g0-0) has no end on record"]}
    tell(told, command(1, 5), "applied", "applied")
    assert found(told) == {"doubled": ["c1.1 (set_knob to g0-0) has ends ['applied', 'applied']"]}


def test_a_command_that_a_person_was_promised_and_is_not_on_record_is_lost(told):
    tell(told, command(1, 5), "applied")
    answers = [{"answer": {"ids": ["c1.1", "c1.2"]}}]
    assert found(told, requests=answers) == {
        "lost": ["c1.2 was promised to a person and is not on record"]
    }


def test_a_command_is_stuck_unless_nobody_was_there_to_end_it(told):
    over_s = 100 + DEADLINE_S + commands.GRACE_S
    tell(told, command(1, 5), "expired", at_s=over_s + 4)
    assert found(told) == {
        "stuck": ["c1.1 (set_knob to g0-0) was open 4.0 s after deadline and grace"]
    }
    assert not found(told, away=[Span(over_s - 1, over_s + 3)])


def test_every_grant_has_one_outcome(told):
    tell(told, command(1, 5), "applied")
    told.granted["p1.1"] = 1
    assert found(told) == {"outcomes": ["p1.1: 1 grants, 0 outcomes"]}
    told.outcomes["p1.1"] = 2
    assert found(told) == {"outcomes": ["p1.1: 1 grants, 2 outcomes"]}
    told.outcomes["p1.1"] = 1
    assert not found(told)


def test_a_request_that_was_sent_again_is_one_proposal(told):
    tell(told, command(1, 5), "applied")
    told.proposals["wish-3"] = 2
    assert found(told) == {"doubled": ["request wish-3, sent again, became 2 proposals"]}


@pytest.mark.parametrize(
    ("ends", "values", "cut_short", "kind"),
    [
        (["applied"], [5], False, None),
        (["applied"], [5, 5], False, "doubled"),
        (["applied"], [], False, "untrue"),
        (["expired"], [5], False, "untrue"),
        (["expired"], [5], True, None),
        (["applied"], [5, 6], False, "doubled"),
    ],
)
def test_what_a_trainer_did_is_what_the_record_says(told, ends, values, cut_short, kind):
    tell(told, command(1, 5), *ends)
    journal = [{"event": "set_knob", "value": value} for value in values]
    start = {"pid": 42, "name": "g0.1", "standby": False}
    faults = commands.operation_faults(told, [(start, journal, cut_short)])
    assert list(faults) == ([kind] if kind else [])


def strike(t, kind, *, target="trainer", pid=42):
    return {"t": t, "event": "strike", "target": target, "kind": kind, "pid": pid} | {
        "stands_by": False,
        "lasts_s": 0.0,
    }


def test_a_failed_step_is_explained_by_a_trainer_that_was_struck_then_and_by_nothing_else():
    timeline = [
        strike(50.0, "kill", target="sidecar"),
        strike(100.0, "freeze"),
        {"t": 106.0, "event": "thaw", "target": "trainer", "pid": 42},
    ]
    struck = disturbances(timeline)
    assert struck == [Span(100.0, 106.0, "frozen")]
    findings = judge.Findings()
    for t in (50.5, 105.0, 120.0):
        judge._blame_step(findings, "g1.1", {"t": t, "duration_s": 0.1, "step": 3}, struck)
    assert findings.counts == {"failed steps, a trainer frozen": 1}
    assert findings.faults["failed steps"] == [
        "g1.1: step 3 at 50.50",
        "g1.1: step 3 at 120.00",
    ]


def test_a_weaver_is_down_from_its_death_until_its_successor_is_ready():
    timeline = [
        strike(10.0, "kill", target="weaver"),
        {"t": 10.1, "event": "end", "what": "weaver"},
        {"t": 11.0, "event": "start", "what": "weaver"},
        {"t": 13.0, "event": "ready", "what": "weaver"},
        strike(20.0, "freeze", target="weaver"),
        {"t": 21.5, "event": "thaw", "target": "weaver", "pid": 42},
    ]
    spans = down(timeline, "weaver")
    assert [(span.begin, span.end) for span in spans] == [(10.0, 13.0), (20.0, 21.5)]
    assert overlap_s([*spans, Span(12.0, 14.0)], 11.0, 21.0) == 4.0
    assert down(timeline, "broker") == []


def asked(t, seconds, *, answered=True, verb="status"):
    row = {"event": "asked", "verb": verb, "began": t, "seconds": seconds}
    return row | {"answered": answered, "error": ""}


def test_status_and_kill_switch_are_owed_an_answer_within_a_second_while_all_is_up():
    timeline = [strike(10.0, "kill", target="broker")]
    timeline += [{"t": 10.5, "event": "ready", "what": "broker"}]
    findings = judge.Findings()
    judge._look_at_answers(
        findings,
        timeline,
        [
            asked(1.0, 0.01),
            asked(2.0, 1.2),
            asked(9.8, 3.0, answered=False),  # the broker dies within its second
            asked(12.0, 3.0, answered=False),  # the Weaver may still be on its way back
            asked(13.0, 0.2, answered=False, verb="actions.stop"),
            asked(14.0, 3.0, verb="knobs"),
        ],
    )
    assert findings.counts["requests that are owed an answer"] == 3
    assert [line.split(":")[0] for line in findings.faults["silence"]] == [
        "status at 2.00",
        "actions.stop at 13.00",
    ]


def test_only_tracebacks_through_our_own_code_are_of_our_making(tmp_path):
    theirs = 'Traceback (most recent call last):\n  File "/x/torchft/manager.py", line 1, in f\n'
    ours = theirs + '  File "/x/torchloom_threadlet/trainer/sidecar_link.py", line 7, in g\n'
    ours_too = theirs + '  File "/x/torchloom_threadlet/demo_trainer.py", line 7, in main\n'
    error = "RuntimeError: no\nall is well\n"
    (tmp_path / "g0.1.err").write_text(theirs + error + ours_too + error + ours + error)
    (tmp_path / "weaver-1.err").write_text(theirs + error)
    findings = judge.Findings()
    judge._look_for_tracebacks(findings, tmp_path)
    assert findings.faults["tracebacks"] == [
        "g0.1.err: RuntimeError: no (torchloom_threadlet/trainer/sidecar_link.py:7)",
        "weaver-1.err: RuntimeError: no (?)",
    ]


def test_ends_that_nobody_caused_and_what_is_left_over_are_of_our_making(tmp_path):
    end = {"event": "end", "struck": False, "drained": False, "last": "torchloom: no"}
    timeline = [
        {"t": 0.0, "event": "begun"},
        {"t": 5.0, "what": "weaver", "name": "weaver-1", "status": 3} | end,
        {"t": 6.0, "what": "trainer", "name": "g0.1", "status": 1} | end,
        {"t": 7.0, "what": "trainer", "name": "g1.1", "status": 0} | end | {"drained": True},
        strike(20.0, "kill"),
        {"t": 21.0, "what": "trainer", "name": "g2.1", "status": 1} | end,
        {"t": 30.0, "event": "settled", "calm": False, "steered": False, "seconds": 90.0},
        {"t": 31.0, "event": "ending"},
        {"t": 32.0, "event": "orphan", "what": "sidecar", "command": "pid 9: python"},
        {"t": 33.0, "event": "stopped", "status": None},
    ]
    for name in ("g0.1", "g1.1", "g2.1"):
        (tmp_path / f"{name}.err").touch()
    findings = judge.Findings()
    judge._look_at_ends(findings, tmp_path, timeline)
    assert {kind: len(lines) for kind, lines in findings.faults.items() if lines} == {
        "weaver ended": 2,
        "trainers died": 1,
        "orphans": 1,
        "not settled": 1,
    }
    assert findings.counts["trainers that torchft ended after a strike"] == 1
    assert findings.ours == 5


def test_the_script_of_a_seed_is_always_the_same_and_has_all_that_was_asked_for():
    written = script.write(7, 300)
    assert written == script.write(7, 300)
    assert written != script.write(8, 300)
    kinds = [strike.kind for strike in written.strikes]
    assert (kinds.count("kill"), kinds.count("freeze")) == (300, 100)
    struck = {(strike.target, strike.kind) for strike in written.strikes}
    assert len(struck) == 2 * len(script.KILLS)
    assert {wish.kind for wish in written.wishes} == set(script.REQUESTS)
    assert len({wish.value for wish in written.wishes}) == len(written.wishes)


def test_a_line_that_was_cut_off_by_a_kill_is_passed_over(tmp_path):
    path = tmp_path / "g0.journal"
    assert record.rows(path) == []
    path.write_text(json.dumps({"event": "drain"}) + '\n{"event": "che')
    assert record.rows(path) == [{"event": "drain"}]
