"""The soak of the fence, shortened; and its judge sees what does not hold."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.fence_soak import judge, script
from experiments.fence_soak.judge import Asked, Findings, Life, life_of

RUN = Path(__file__).parents[2] / "experiments" / "fence_soak" / "run.py"
CHANGES, SEED = 5, 24
"""A short script with a kill and a freeze of a trainer."""
START = {"lr": 0.05, "width": 16, "wire": "fp32"}


def journal(landed_after, value, last=8, quorum=7):
    """Return what a life writes down whose width becomes ``value`` after a step."""
    rows = []
    for step in range(1, last + 1):
        width = value if step > landed_after else 16
        used = {**START, "width": width}
        rows.append(
            {
                "event": "step",
                "step": step,
                "quorum": quorum,
                "committed": True,
                "values": used,
                "weights": f"w{step}",
            }
        )
        if step == landed_after:
            rows.append({"event": "set", "knob": "width", "value": value, "step": step})
    return rows


def faults(lives, asked):
    findings = Findings()
    judge._compare_lives(findings, lives)
    judge._look_at_authors(findings, asked, frozenset({"person"}))
    judge._look_at_changes(findings, asked, judge.main_line(lives), lives)
    return findings.faults


def two_lives(first=5, second=5, value=20):
    return [
        life_of(name, journal(after, value), alive=True)
        for name, after in (("a.1", first), ("b.1", second))
    ]


def ack(step, detail=""):
    return {"worker": "a-0", "status": "applied", "step": step, "detail": detail}


def test_what_landed_on_all_at_the_step_that_is_said_is_good():
    asked = {"p1": Asked({"width": 20}, "done", "at step 5", acks=[ack(5)])}
    assert faults(two_lives(), asked) == []


def test_a_step_that_two_made_with_different_knobs_or_weights_is_found():
    asked = {"p1": Asked({"width": 20}, "done")}
    assert "step 6 of quorum 7: values of b.1" in faults(two_lives(second=6), asked)[0]
    lives = two_lives()
    lives[1].steps[judge.Try(3, 7)]["weights"] = "other"
    assert faults(lives, asked) == ["step 3 of quorum 7: weights of b.1 are other, of a.1 w3"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (Asked({"width": 20}, "undone", "silent"), "undone, and landed after step 5"),
        (Asked({"width": 20}), "has no outcome"),
        (Asked({"width": 30}, "done"), "done, and nobody has it"),
        (Asked({"width": 20, "wire": "bf16"}, "done"), "landed in part"),
        (Asked({"width": 20}, "done", policy="reconcile"), "nobody asked for it but reconcile"),
        (Asked({"width": 20}, "done", acks=[ack(4)]), "a-0 says applied at step 4, was 5"),
    ],
)
def test_a_record_that_says_otherwise_than_the_ranks_did_is_found(change, said):
    assert any(said in fault for fault in faults(two_lives(), {"p1": change}))


def test_the_last_try_of_a_step_is_the_one_that_counts():
    lost = Life("c.1", alive=False)
    again = copy.deepcopy(journal(5, 20))
    for row in again:
        row["quorum"] = 9
    lives = [life_of("a.1", journal(3, 20, last=6), alive=False), life_of("b.1", again, alive=True)]
    main = judge.main_line([*lives, lost])
    assert judge.landings(main, {"width": 20}) == [range(5, 6)]


def test_an_end_that_nobody_caused_and_an_abort_are_found(tmp_path):
    end = {"event": "end", "what": "trainer", "name": "g0.1", "status": -6, "last": "no"}
    (tmp_path / "g0.1.err").write_text("terminate called after throwing gloo::EnforceNotMet")
    findings = Findings()
    judge._look_at_ends(findings, tmp_path, [{**end, "struck": False}, {**end, "struck": True}])
    assert findings.faults == [
        "g0.1 ended with -6, and nobody killed it: no",
        "g0.1.err: terminate called",
    ]


def test_a_step_that_fails_long_after_anybody_was_hit_is_found():
    life = life_of("a.1", [], alive=True)
    life.failed.append({"t": 100.0, "step": 7})
    timeline = [{"event": "strike", "t": 100.0 - judge.EXPLAINED_S}]
    findings = Findings()
    judge._look_at_failures(findings, [life], timeline)
    assert findings.faults == []
    timeline[0]["t"] -= 1.0
    judge._look_at_failures(findings, [life], timeline)
    assert findings.faults == ["a.1: step 7 failed, and nobody was hit"]


@pytest.mark.parametrize("algorithm", ["ddp", *script.PARTS])
def test_no_value_by_which_a_change_is_known_is_given_twice_and_those_that_fit_say_so(algorithm):
    changes = script.write(1, 200, algorithm)
    fit = [change.values for change in changes if script.fits(change.values, algorithm)]
    marks = [(knob, values[knob]) for values in fit for knob in judge.MARKS if knob in values]
    assert len(set(marks)) == len(marks)
    assert all(judge.MARKS & values.keys() for values in fit)
    assert {name for values in fit for name in values} == {
        knob.name for knob in script.KNOBS[algorithm]
    }
    unfit = [change.values for change in changes if change.values not in fit]
    assert all(values in unfit for values in script.UNFIT_VALUES[algorithm])


@pytest.mark.parametrize(
    ("values", "algorithm", "fit"),
    [
        ({"sync_every": 9}, "local_sgd", True),
        ({"sync_every": 0}, "local_sgd", False),
        ({"sync_every": 9}, "diloco", False),
        ({"sync_every": 8, "fragment_sync_delay": 3}, "diloco", True),
        ({"sync_every": 8, "fragment_sync_delay": 4}, "diloco", False),
    ],
)
def test_rounds_are_as_torchft_can_make_them(values, algorithm, fit):
    assert script.fits(values, algorithm) == fit


def test_a_round_of_what_does_not_fit_and_a_change_to_it_that_is_not_undone_are_found():
    findings, odd = Findings(), {"sync_every": 9}
    judge._look_at_the_unfit(findings, {"p1": Asked(odd, "done")}, {4: odd}, "diloco")
    assert findings.faults == [
        "p1 {'sync_every': 9}: does not fit, and is done",
        "step 4 was made with {'sync_every': 9}, which does not fit",
    ]


def test_a_round_in_which_a_peers_state_was_taken_is_compared_by_its_weights_alone():
    lives = two_lives()
    lives[1].steps[judge.Try(6, 7)]["values"] = None
    asked = {"p1": Asked({"width": 20}, "done", "at step 5", acks=[ack(5)])}
    assert faults(lives, asked) == []
    lives[1].steps[judge.Try(6, 7)]["weights"] = "other"
    assert faults(lives, asked) == ["step 6 of quorum 7: weights of b.1 are other, of a.1 w6"]


def test_where_nobody_is_left_to_say_it_a_change_may_have_landed_at_several_steps():
    main = {1: {"lr": 1}, 2: {"lr": 1}, 5: {"lr": 2}, 6: {"lr": 2}}
    assert judge.landings(main, {"lr": 2}) == [range(2, 5)]


def test_a_rate_that_is_back_with_its_optimizer_has_not_landed_again():
    used = [("adamw", 1), ("adamw", 2), ("sgd", 9), ("adamw", 2), ("adamw", 3), ("adamw", 2)]
    main = {step: {"optimizer": name, "lr": lr} for step, (name, lr) in enumerate(used)}
    assert judge.landings(main, {"lr": 2}) == [range(1), range(4, 5)]


def test_the_script_of_a_seed_is_always_the_same():
    changes = script.write(1, 200)
    assert changes == script.write(1, 200)
    assert changes != script.write(2, 200)
    struck = {(due.kind, due.target) for change in changes for due in change.strikes}
    assert struck == set(script.STRIKES)


@pytest.mark.long
@pytest.mark.integration
def test_changes_among_kills_and_freezes_land_on_all_ranks_or_nowhere(tmp_path):
    arguments = ["--changes", CHANGES, "--seed", SEED]
    done = subprocess.run(
        [sys.executable, RUN, *map(str, arguments), "--out", tmp_path, "--results", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    counts = json.loads((tmp_path / f"ddp-{SEED}.json").read_text())["counts"]
    assert counts["changes granted"] == CHANGES
    assert counts["changes done"] > 0
    assert counts["values of a step compared"] > 0
    assert counts["kill trainer"] > 0
