"""The schedules of the lab, and what is concluded from a run in it."""

import json
from itertools import pairwise

import pytest

from experiments.allreduce import judge, quality, record, schedule
from experiments.allreduce.arm import TUNER, Played
from experiments.allreduce.schedule import steps

STEADY = steps((None, 50.0), (20.0, 20.0), 1)


def played(arm, step_s, fall, *, seed=1, modes=None, failed=0):
    """Return an arm whose step takes ``step_s`` in each phase, and whose loss falls evenly."""
    rows, at_s, number = [], 0.0, 0
    for place, phase in enumerate(STEADY):
        while at_s < phase.end_s:
            at_s += step_s[place]
            number += 1
            mode = modes[place] if modes else arm
            row = {"event": "step", "step": number, "t": at_s, "step_time": step_s[place]}
            rows.append({**row, "mode": mode, "committed": number > failed})
    marks = [{"event": "mark", "t": float(t), "tried": 4 - fall * t} for t in range(41)]
    return Played(arm, seed, [rows + marks], [0.0, 20.0])


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


def test_a_schedule_comes_back_from_its_trace_bundle(tmp_path):
    planned = steps((None, 1000.0, 50.0), (3.0, 2.0, 4.0), 2)
    path = tmp_path / "lab.tltrace"
    record.write_bundle(planned, path)
    assert record.recorded(path, 2) == planned
    with pytest.raises(ValueError, match="need link_bytes_per_s of 3 components, was 2"):
        record.recorded(path, 3)


def test_what_does_not_hold_is_said_to_not_hold():
    best = [played("none", (0.1, 1.0), 0.02), played("int8", (0.2, 0.4), 0.02)]
    good = judge.checks_of_changing([*best, played(TUNER, (0.1, 0.4), 0.04)], STEADY, {})
    assert [check.holds for check in good] == [True] * 7
    slow = played(TUNER, (0.1, 0.5), 0.02, failed=1)
    slow = judge.checks_of_changing([*best, slow], STEADY, {})
    assert [check.holds for check in slow] == [False, True, True, False, False, True, False]
    assert judge.checks_of_changing(best, STEADY, {}) == []


def test_a_mode_trains_from_where_none_was_and_its_quality_is_written(tmp_path):
    out = tmp_path / "quality.json"
    tiny = ["--width", "16", "--layers", "1", "--context", "8", "--batch", "1"]
    options = ["--before", "10", "--stay", "20", "--jobs", "1", "--modes", "int8", "--seeds", "1"]
    assert quality.main([*options, "--out", str(out), *tiny]) == 0
    written = json.loads(out.read_text())
    assert list(written["quality"]) == ["none", "int8"]
    alone, other = written["curves"]
    assert alone["steps"] == other["steps"] == [0, 10, 20, 30]
    assert alone["loss"][:2] == other["loss"][:2]
    assert alone["loss"][2:] != other["loss"][2:]
