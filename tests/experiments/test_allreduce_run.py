"""The schedules of the lab, and what is concluded from a run in it."""

import argparse
import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from experiments.allreduce import judge, kept_arms, quality, record, report, run, schedule, uneven
from experiments.allreduce.arm import TUNER, Arm, Played, Settings
from experiments.allreduce.lab import Rate
from experiments.allreduce.model import Text, Workload, build
from experiments.allreduce.schedule import steps

TINY = Workload(width=16, layers=1, context=8, batch=1)
CALM = steps((None, 50.0), (20.0, 20.0), 1)
STEADY = steps((50.0,), (40.0,), 1)


def played(arm, step_s, fall, *, seed=1, modes=None, failed=0):
    """Return an arm whose step takes ``step_s`` in each phase, and whose loss falls evenly."""
    rows, at_s, number = [], 0.0, 0
    for place, phase in enumerate(CALM):
        while at_s < phase.end_s:
            at_s += step_s[place]
            number += 1
            mode = modes[place] if modes else arm
            said = {"event": "step", "step": number, "t": at_s, "step_time": step_s[place]}
            rows.append({**said, "mode": mode, "committed": number > failed})
    marks = [{"event": "mark", "t": float(t), "tried": 4 - fall * t} for t in range(41)]
    return Played(arm, seed, [rows + marks], [0.0, 20.0])


def test_an_arm_is_taken_again_only_if_it_is_what_would_be_played(tmp_path):
    arm, of_another = Arm("none", "none"), Arm("none", "none", "[policies.allreduce_tuner]")
    asked = (1, CALM, Settings(TINY))
    was, key = played("none", (0.1, 0.5), 0.01), kept_arms.key_of(arm, *asked)
    (tmp_path / "rank0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in was.rows[0]))
    assert kept_arms.kept(tmp_path, key, 1) is None  # it was not played to its end
    kept_arms.keep(tmp_path, key, was)
    assert kept_arms.kept(tmp_path, key, 1) == was
    others = [(of_another, *asked), (arm, 2, *asked[1:]), (arm, 1, CALM[:1], asked[2])]
    others += [(arm, 1, CALM, Settings(TINY, topk_share=0.5))]
    for other in others:
        assert kept_arms.kept(tmp_path, kept_arms.key_of(*other), 1) is None
    assert kept_arms.kept(tmp_path, key, 2) is None  # a journal is gone
    for damaged in ("{", "[]", "{}", f'{{"key": "{key}", "played": 1}}'):
        (tmp_path / "played.json").write_text(damaged)
        assert kept_arms.kept(tmp_path, key, 1) is None


def test_a_schedule_of_a_seed_is_always_the_same_and_covers_its_time():
    for make in (
        lambda seed: schedule.sinus(50, 1000, 30, 60, 4, seed),
        lambda seed: schedule.failing(1000, 20, 60, 4, seed),
        lambda seed: schedule.asymmetric(500, 60, 4, seed),
    ):
        planned = make(1)
        assert planned == make(1)
        assert planned != make(2)
        assert planned[0].start_s == 0
        assert planned[-1].end_s == pytest.approx(60)
        assert all(a.end_s == b.start_s for a, b in pairwise(planned))
        assert {len(phase.rates) for phase in planned} == {4}


def test_a_failing_link_falls_and_the_others_stay():
    planned = schedule.failing(1000, 20, 60, 4, 1)
    firsts, lasts = planned[0].rates, planned[-1].rates
    fallen = [a != b for a, b in zip(firsts, lasts, strict=True)]
    assert fallen.count(True) == 1
    assert lasts[fallen.index(True)].up < 40


def test_a_schedule_comes_back_from_its_trace_bundle(tmp_path):
    planned = steps((None, 1000.0, 50.0), (3.0, 2.0, 4.0), 2)
    path = tmp_path / "lab.tltrace"
    record.write_bundle(planned, path)
    assert record.recorded(path, 2) == planned
    with pytest.raises(ValueError, match="need link_bytes_per_s of 3 components, was 2"):
        record.recorded(path, 3)


def test_a_bundle_says_the_slower_way_of_a_link(tmp_path):
    path = tmp_path / "lab.tltrace"
    record.write_bundle(schedule.phases([(2.0, (Rate(up=80.0, down=None),))]), path)
    assert record.recorded(path, 1)[0].rates == (Rate.both(80.0),)


def test_the_time_to_a_loss_lies_between_marks_and_is_endless_if_it_is_not_reached():
    falls = played("none", (1.0, 1.0), 0.02)
    assert judge.time_to(falls, 3.61) == pytest.approx(19.5, abs=0.01)
    assert judge.time_to(falls, 1.0) == math.inf


def test_a_loss_that_is_met_by_chance_alone_is_not_reached_by_it():
    losses = [4.0, 3.0, 1.0, 3.2, 2.8, 2.0, 2.2, 1.8]
    assert quality.falling(losses) == pytest.approx([4.0, 3.0, 7 / 3, 7 / 3, 7 / 3, 2.1, 2.1, 1.8])
    assert quality.first_at(range(8), losses, 2.0) > 6


def test_what_more_of_a_core_is_used_than_without_the_tuner_is_the_tuner_s():
    static = [replace(played("none", (1.0, 1.0), 0.02), weaver_cpu_s=2.0)]
    ours = replace(played(TUNER, (1.0, 1.0), 0.02), weaver_cpu_s=4.0)
    ours.rows[0].append({"event": "trained", "sidecar_cpu_s": 2.0})
    assert judge.own_share([*static, ours]) == pytest.approx(0.1)
    (text,) = [
        check.text for check in judge.checks_of_constant([*static, ours], STEADY) if not check.holds
    ]
    assert text == "50 Mbit/s: the tuner uses 10.0% of a core, probes included, need at most 2%"


def test_the_gain_is_over_the_best_static_mode_of_the_seed():
    trials = [played("none", (1, 1), 0.01), played("int8", (1, 1), 0.02)]
    trials.append(played(TUNER, (1, 1), 0.04))
    assert judge.gains(trials) == [pytest.approx(2.0, rel=0.05)]
    trials[-1] = played(TUNER, (1, 1), 0.005)
    assert judge.gains(trials) == [0.0]


def test_how_much_slower_is_told_where_the_fixed_loss_is_reached_before_the_end():
    trials = [played("none", (1, 1), 0.01), played("int8", (1, 1), 0.02)]
    trials.append(played(TUNER, (1, 1), 0.0185))
    assert judge.gains(trials) == [0.0]
    assert judge.gains(trials, 36.0) == [pytest.approx(0.925, rel=0.02)]
    (gain, *_) = judge.checks_of_constant(trials, STEADY)
    assert not gain.holds
    assert gain.text.startswith("50 Mbit/s: time to the fixed loss: 0.93 ")


def test_what_does_not_hold_is_said_to_not_hold():
    best = [played("none", (0.1, 1.0), 0.02), played("int8", (0.2, 0.4), 0.02)]
    good = judge.checks_of_changing([*best, played(TUNER, (0.1, 0.4), 0.04)], CALM, {})
    assert [check.holds for check in good] == [True] * 7
    slow = played(TUNER, (0.1, 0.5), 0.02, failed=1)
    slow = judge.checks_of_changing([*best, slow], CALM, {})
    assert [check.holds for check in slow] == [False, True, True, False, False, True, False]
    assert judge.checks_of_changing(best, CALM, {}) == []


def test_a_quicker_step_that_is_worth_less_is_not_the_best():
    modes = {"none": 0.3, "powersgd": 0.27}
    static = [played(mode, (0.3, s), 0.02, modes=(mode, mode)) for mode, s in modes.items()]
    tuned = played(TUNER, (0.3, 0.27), 0.02, modes=("none", "powersgd"))
    checks = judge.checks_of_changing([*static, tuned], CALM, {"powersgd": 0.5})
    assert "0.56 of the progress a second in the best static mode (none)" in checks[3].text
    assert "0.90 times as long as in that mode" in checks[4].text
    assert checks[4].text.endswith("(the shortest, powersgd: 1.00)")
    assert [check.holds for check in checks[1:5]] == [True, True, False, True]


def test_a_tuner_that_goes_on_switching_does_not_hold():
    static = [played("none", (0.5, 0.5), 0.02)]
    restless = played(TUNER, (0.5, 0.5), 0.02, modes=("none", "int8"))
    calm = played(TUNER, (0.5, 0.5), 0.02, modes=("none", "none"))
    assert judge.switches(restless, 5.0) == 1
    assert judge.switches(restless, 25.0) == 0
    assert all(check.holds for check in judge.checks_of_constant([*static, calm], STEADY))


def test_steps_that_begin_in_a_phase_count_for_it_and_its_first_ones_do_not():
    trial = played("none", (0.1, 1.0), 0.02)
    rows = judge.phased([trial], CALM)
    assert [row.step_s for row in rows] == [pytest.approx(0.1), pytest.approx(1.0)]
    assert rows[1].steps == 10


def test_an_ideal_switcher_has_the_best_mode_of_each_phase():
    trials = [played("none", (0.1, 1.0), 0.02), played("int8", (0.2, 0.25), 0.02)]
    said = report.ideal_switcher(judge.phased(trials, CALM), {"none": 1.0}, CALM)
    assert said.startswith("ideal switcher (none, int8): 1.60 times as fast to where none")
    assert "1.27 times its progress" in said


def test_quality_is_what_none_needs_to_the_loss_at_the_end_of_a_stay_over_its_steps():
    steps_ = list(range(0, 101, 10))
    alone = quality.Curve("none", 1, steps_, [4 - 0.02 * n for n in steps_])
    half = [4 - 0.02 * n for n in steps_[:5]] + [3.2 - 0.01 * n for n in range(10, 70, 10)]
    slow = quality.Curve("topk", 1, steps_, half)
    worse = quality.Curve("powersgd", 1, steps_, [4.0 for _ in steps_])
    found = {row.mode: row.quality for row in quality.judge([alone, slow, worse], 40)}
    assert found == {"none": 1.0, "topk": pytest.approx(0.5), "powersgd": quality.LEAST}


def test_a_mode_trains_from_where_none_was_and_its_quality_is_written(tmp_path):
    out = tmp_path / "quality.json"
    tiny = ["--width", "16", "--layers", "1", "--context", "8", "--batch", "1"]
    said = ["--before", "10", "--stay", "20", "--jobs", "1", "--modes", "int8", "--seeds", "1"]
    assert quality.main([*said, "--out", str(out), *tiny]) == 0
    written = json.loads(out.read_text())
    assert list(written["quality"]) == ["none", "int8"]
    alone, other = written["curves"]
    assert alone["steps"] == other["steps"] == [0, 10, 20, 30]
    assert alone["loss"][:2] == other["loss"][:2]
    assert alone["loss"][2:] != other["loss"][2:]


def test_a_stay_of_no_whole_tens_is_refused_in_a_line(capsys):
    with pytest.raises(SystemExit):
        quality.main(["--stay", "5"])
    assert "--stay: need a multiple of 10, was 5" in capsys.readouterr().err


def test_a_mode_that_there_is_not_is_refused_in_a_line(capsys):
    with pytest.raises(SystemExit):
        quality.main(["--modes", "int8,int9"])
    assert "was int9" in capsys.readouterr().err


def test_a_rank_sees_the_same_batch_at_a_step_and_another_at_the_next():
    text = Text(TINY)
    assert text.batch(1, 2, 0).equal(text.batch(1, 2, 0))
    for other in ((2, 2, 0), (1, 3, 0), (1, 2, 1)):
        assert not text.batch(1, 2, 0).equal(text.batch(*other))
    assert build(TINY, text, 1).out.weight.equal(build(TINY, text, 1).out.weight)


def test_a_ring_sends_from_each_rank_to_the_one_before_it():
    matrix = [[0.0, 10.0, 90.0], [80.0, 0.0, 20.0], [30.0, 70.0, 0.0]]
    assert uneven.bottleneck(matrix, (0, 1, 2)) == 70.0  # 1 to 0, 2 to 1, 0 to 2
    assert uneven.bottleneck(matrix, (0, 2, 1)) == 10.0
    assert uneven.best_order(matrix) == (0, 1, 2)
    assert uneven.bottleneck(matrix, uneven.chosen_order(matrix)) == 70.0


def test_the_schedule_is_five_levels_of_half_a_minute_to_a_minute_each():
    parser = argparse.ArgumentParser()
    schedule.add_options(parser)
    planned = schedule.of_options(parser.parse_args([]))
    names = [phase.name for phase in planned]
    assert names == ["unshaped", "1000 Mbit/s", "200 Mbit/s", "50 Mbit/s", "1000 Mbit/s"]
    assert all(30 <= phase.end_s - phase.start_s <= 60 for phase in planned)


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        (["--phase-s", "inf"], "--phase-s: need more than 0 and at most 86400, was inf"),
        (["--phase-s", "0"], "--phase-s: need more than 0"),
        (["--ranks", "1"], "--ranks: need at least 2, was 1"),
        (["--ranks", "two"], "--ranks: invalid"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_in_a_line(capsys, tmp_path, said, rule):
    with pytest.raises(SystemExit) as ended:
        record.main([str(tmp_path / "x.tltrace"), *said])
    assert ended.value.code == 2
    assert rule in capsys.readouterr().err


def test_a_tuner_that_is_compared_with_nothing_is_refused():
    with pytest.raises(SystemExit, match="--arms: need a static mode at least"):
        run.main(["--arms", "tuner"])


def test_results_keep_the_names_of_files_and_not_where_they_lay():
    asked = argparse.Namespace(seeds=3, out=Path("/somewhere/results"), trace=None)
    assert kept_arms.said(asked) == {"seeds": "3", "out": "results", "trace": "None"}


@pytest.mark.parametrize("keep", ["", '{"event": "step"}\n', "null\n", '{"a": 1}\n', "{"])
def test_an_arm_whose_journal_was_cut_or_damaged_is_played_again(tmp_path, keep):
    was, key = played("none", (0.1, 0.5), 0.01), "key"
    journal = tmp_path / "rank0.jsonl"
    journal.write_text("".join(json.dumps(row) + "\n" for row in was.rows[0]))
    kept_arms.keep(tmp_path, key, was)
    assert kept_arms.kept(tmp_path, key, 1) is not None
    journal.write_text(keep)
    assert kept_arms.kept(tmp_path, key, 1) is None


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (["--constant", "foo"], "need unshaped, or from 1 to 100000 Mbit/s, was 'foo'"),
        (["--constant", "100,"], "need unshaped, or from 1 to 100000 Mbit/s, was ''"),
        (["--constant", "50,-5"], "need unshaped, or from 1 to 100000 Mbit/s, was '-5'"),
        (["--constant", "nan"], "need unshaped, or from 1 to 100000 Mbit/s, was 'nan'"),
        (["--quality", "/nowhere.json"], "--quality: need a file of quality.py, was /nowhere.json"),
    ],
)
def test_what_is_no_level_or_no_quality_is_refused_in_a_line(said, line, capsys):
    with pytest.raises(SystemExit):
        run.main(said)
    assert line in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[]", "{}", '{"quality": {"topk": "much"}}', "{"])
def test_a_file_of_quality_that_is_none_is_refused(tmp_path, text):
    path = tmp_path / "quality.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"need a file of quality\.py"):
        run.quality_of(path)
