"""How many spares to pay for."""

import io
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console

from tests.evaluate.episodes import CONFIG, JOB, policies, setting_of, some_events, write
from tests.evaluate.report.reports import report, simulation
from torchloom_core.floor.errors import ConfigError
from torchloom_core.lab.evaluate.goodput.arms import elastic
from torchloom_core.lab.evaluate.goodput.run import Setting, simulate
from torchloom_core.lab.evaluate.goodput.sweep import Range, arms_of, range_of, sweep
from torchloom_core.lab.evaluate.report.sweep import enough, recommendations, sweep_plot
from torchloom_core.lab.evaluate.report.tables import tables
from torchloom_core.lab.evaluate.report.wording import estimate
from torchloom_core.lab.evaluate.results import RunResult

SEEDS = 6
QUICK = replace(CONFIG, evaluate=replace(JOB, days=1.0, recovery="per_step"))


def alone(setting, arms):
    return {arm.name: [simulate(setting, arm, seed) for seed in range(SEEDS)] for arm in arms}


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "small.tltrace"
    return setting_of(write(path, some_events(count=60)), QUICK)


@pytest.fixture(scope="module")
def swept(setting):
    return sweep(alone, setting, range_of("spares=0..3"), arms_of(policies(), []))


def made_up(goodput_by_value):
    """Return a sweep of one arm, from value to goodput per seed."""

    def played(setting, arms):
        spares = setting.config.evaluate.spares
        gpus = (4 + spares) * 8
        runs = [
            RunResult(arm="x", seed=seed, wall_s=1.0, gpus=gpus, job_gpus=32, buckets={},
                      goodput=goodput, ettr=1.0)
            for seed, goodput in enumerate(goodput_by_value[spares])
        ]  # fmt: skip
        return {arm.name: runs for arm in arms}

    wanted = Range(name="spares", values=tuple(goodput_by_value))
    (arm,) = (one for one in arms_of({}, []) if one.name == "restart")
    return sweep(played, Setting(trace="none.tltrace", config=QUICK), wanted, [arm])


@given(st.integers(0, 50), st.integers(1, 50), st.integers(1, 9))
def test_a_range_reads_as_it_is_written(low, more, step):
    assert range_of(f"spares={low}..{low + more * step}:{step}").values == tuple(
        range(low, low + more * step + 1, step)
    )
    assert range_of(f"standbys={low}..{low + more}") == Range(
        name="standbys", values=tuple(range(low, low + more + 1))
    )


@pytest.mark.parametrize(
    "text", ["", "spares=", "spares=1", "=0..3", "spares=0..3:", "spares=-1..3"]
)
def test_what_is_no_range_is_refused(text):
    with pytest.raises(ConfigError, match=r"need NAME=LOW\.\.HIGH"):
        range_of(text)


@pytest.mark.slow
def test_every_way_to_recover_is_played_with_every_value(swept):
    assert list(swept.lines) == ["restart", "per_step", "elastic", "elastic as planned"]
    for line in swept.lines.values():
        assert [point.value for point in line] == [0, 1, 2, 3]
    assert swept.gpu_h_per_day == 24 * 8


def test_a_point_is_what_the_same_runs_come_to_alone(setting, swept):
    config = replace(QUICK, evaluate=replace(QUICK.evaluate, spares=2))
    runs = [simulate(replace(setting, config=config), elastic(), seed) for seed in range(SEEDS)]
    point = swept.lines["elastic"][2]
    assert point.goodput.value == pytest.approx(sum(run.goodput for run in runs) / SEEDS)
    useful = [run.buckets["useful"] / 3600 for run in runs]
    assert point.useful_gpu_h_per_day.value == pytest.approx(sum(useful) / SEEDS)
    capped = swept.lines["elastic as planned"][2]
    assert capped.goodput.value == pytest.approx(sum(run.as_planned for run in runs) / SEEDS)


def test_what_one_more_brings_is_the_difference_to_the_value_before_seed_by_seed(swept):
    for line in swept.lines.values():
        for before, point in itertools.pairwise(line):
            more = point.useful_gpu_h_per_day.value - before.useful_gpu_h_per_day.value
            assert point.more_gpu_h_per_day.value == pytest.approx(more)
            assert point.more_gpu_h_per_day.high is not None
        assert line[0].more_gpu_h_per_day is None


def test_the_progress_of_one_of_several_parts_is_scaled():
    line = made_up({0: [0.5] * SEEDS, 4: [0.5] * SEEDS}).lines["restart"]
    assert line[1].more_gpu_h_per_day.value == pytest.approx(0.5 * 8 * 24)


def test_a_spare_that_trains_brings_what_a_gpu_brings_and_a_waiting_one_little(swept):
    brought = {name: line[-1].more_gpu_h_per_day.value for name, line in swept.lines.items()}
    assert brought["elastic"] > 100
    assert brought["per_step"] < 30
    assert brought["elastic as planned"] < 30


def test_the_fewest_pay_with_which_goodput_is_not_clearly_lower():
    noise = [0.0, 0.01, -0.01, 0.02, -0.02, 0.0]
    found = made_up({
        0: [0.70] * SEEDS,
        1: [0.8 + 0.3 * one for one in noise],
        2: [0.801] * SEEDS,
        3: [0.75] * SEEDS,
    })  # fmt: skip
    assert found.best == {"restart": 2}
    assert enough(found, "restart").value == 1
    (message,) = recommendations(found, SEEDS)
    assert message.startswith(
        "restart: pay for 1 to 2 spares in addition to 1 standbys. Goodput is highest at 2, 0.801"
    )
    assert "not clearly lower at 1, 0.800" in message
    assert "; one more than 2 adds " in message


def test_where_goodput_only_falls_none_pay_and_where_it_only_rises_more_were_not_tried():
    (none,) = recommendations(made_up({0: [0.9] * SEEDS, 1: [0.8] * SEEDS}), SEEDS)
    assert none.startswith(
        "restart: pay for 0 spares in addition to 1 standbys. Goodput is highest there"
    )
    assert "useful GPU-h per day and costs 192" in none
    (most,) = recommendations(made_up({0: [0.8] * SEEDS, 1: [0.9] * SEEDS}), SEEDS)
    assert most.startswith("restart: pay for 1 spares ")
    assert most.endswith("larger values were not tried.")


def test_with_too_few_seeds_no_number_is_named_to_pay_for():
    few = made_up({0: [0.8] * 5, 1: [0.801] * 5, 2: [0.7] * 5})
    assert enough(few, "restart") is None
    assert recommendations(few, 5) == [
        "restart: too few seeds for a recommendation: need 6, was 5. With 1 standbys, goodput was "
        "highest at 1 spares, 0.801."
    ]
    assert "restart" in sweep_plot(few)


def test_of_a_run_that_grows_no_number_is_named_but_what_each_brings(swept):
    message = next(one for one in recommendations(swept, SEEDS) if one.startswith("elastic:"))
    assert "all spares train" in message
    assert "see elastic as planned" in message
    assert any(
        one.startswith("elastic as planned: pay for") for one in recommendations(swept, SEEDS)
    )


def test_lines_that_are_the_same_are_drawn_once_and_all_named(swept):
    line = swept.lines["restart"]
    picture = sweep_plot(replace(swept, lines={"one": line, "other": line}, best={}))
    assert "one = other" in picture


def test_the_picture_has_every_line(swept):
    picture = sweep_plot(swept)
    for name in swept.lines:
        assert name in picture


def test_the_terminal_shows_the_interval_of_every_point(swept):
    out = io.StringIO()
    shown = simulation(sweep=swept, seeds=tuple(range(SEEDS)))
    Console(file=out, width=200).print(tables(report(simulation=shown)))
    for line in swept.lines.values():
        for point in line:
            assert estimate(point.goodput) in out.getvalue()
            if point.more_gpu_h_per_day is not None:
                assert estimate(point.more_gpu_h_per_day, 1) in out.getvalue()
