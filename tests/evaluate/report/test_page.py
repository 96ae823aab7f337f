import re
from functools import cache
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace

from tests.evaluate.report.reports import TRACE, interval, report, score, simulation
from torchloom_core.evaluate.report import page_text
from torchloom_core.evaluate.report.findings import flips
from torchloom_core.evaluate.results import SensitivityPoint
from torchloom_core.learning.forecast_score import Interval

pytestmark = pytest.mark.slow


@cache
def page():
    """Return the page of the report as it stands, rendered once."""
    return page_text(report())


class Loads(HTMLParser):
    """Collects whatever a browser would fetch or run."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            reaches = name in ("src", "href", "xlink:href") and not str(value).startswith("#")
            if reaches or name.startswith("on") or tag == "script":
                self.found.append((tag, name, value))


def test_the_page_loads_and_runs_nothing():
    loads = Loads()
    loads.feed(page())
    assert loads.found == []
    assert "@import" not in page()


def test_the_same_report_gives_the_same_bytes():
    assert page_text(report()) == page()


def test_foreign_text_is_shown_and_never_run():
    evil = "<script>alert(1)</script>"
    text = page_text(report(assumptions=(evil,), forecasts=(score(evil),)))
    assert evil not in text
    assert "&lt;script&gt;alert(1)" in text


def test_every_picture_is_there_for_a_simulation():
    text = page()
    for label in (
        "goodput: useful share",
        "% of all GPU-seconds",
        "days from the start",
        "precision of an alarm",
        "times as large",
        "Calibration",
        "false alarms",
    ):
        assert label in text


def test_false_alarms_are_counted_by_what_is_watched_in_a_unit_that_reads_well():
    disks = report(mode="replay", simulation=None, trace={**TRACE, "watched": "disk"})
    text = page_text(disks)
    # Two tables, a picture, and what the policy comes to.
    assert text.count("false alarms per 1,000 disk-days") >= 4
    assert "<td>20 [10, 30]</td>" in text
    assert "node-day" not in text


def test_a_replay_has_no_goodput_and_a_simulation_without_forecasts_no_curves():
    replay = page_text(report(mode="replay", simulation=None))
    assert 'id="goodput"' not in replay
    assert 'id="forecasts"' in replay
    closed = page_text(report(forecasts=(), policies=()))
    assert 'id="goodput"' in closed
    assert 'id="forecasts"' not in closed


def test_a_synthetic_trace_says_so():
    assert "synthetic trace" in page()
    recorded = {**TRACE, "synthetic": False}
    assert "synthetic trace" not in page_text(report(trace=recorded))


def points(*gains):
    return tuple(
        SensitivityPoint(arm="a", cost="migrate_s", factor=factor, gain=gain)
        for factor, gain in zip((0.25, 1.0, 4.0), gains, strict=True)
    )


def test_where_a_clear_gain_turns_into_a_clear_loss_is_told():
    shown = simulation(sensitivity=points(interval(0.02), interval(0.02), interval(-0.02)))
    assert flips(shown) == [
        "a gains where migrate_s is 1 times as large and loses where it is 4 times: on a straight "
        "line between them the sign turns at 2 times."
    ]
    assert "the sign turns at 2 times" in page_text(report(simulation=shown))


def test_a_sign_that_chance_may_have_made_is_no_flip():
    held = interval(0.005)
    assert flips(simulation(sensitivity=points(interval(0.02), held, interval(-0.005)))) == []
    assert flips(simulation(sensitivity=points(*[Interval(value=v) for v in (1, -1, 1)]))) == []


def test_a_flip_across_an_unclear_point_is_told_between_the_clear_ones():
    shown = simulation(sensitivity=points(interval(-0.02), interval(0), interval(0.02)))
    (said,) = flips(shown)
    assert "loses where migrate_s is 0.25 times" in said
    assert "turns at 1 times" in said


def test_a_page_without_flips_says_that_there_are_none_or_that_nobody_can_know():
    steady = points(interval(0.02), interval(0.02), interval(0.02))
    few = page_text(report(simulation=simulation(sensitivity=steady)))
    assert "It takes 6 seeds to say where a sign turns" in few
    shown = simulation(sensitivity=steady, seeds=tuple(range(8)))
    many = page_text(report(simulation=shown))
    assert "No cost turns a clear gain into a clear loss" in many


def test_the_page_says_on_how_many_seeds_costs_were_varied():
    assert "on all seeds: at 1 it is the gain" in page()
    many = page_text(report(simulation=simulation(seeds=tuple(range(24)))))
    assert "on the first 10 seeds: at 1 it is not quite the gain of all 24" in many


def test_the_break_even_plot_shows_what_moves_came_to_and_not_what_prices_promise():
    *others, last = simulation().arms
    rule = replace(simulation().break_even, measured={"failure_forecast": 0.3})
    arms = (*others, replace(last, moves=10.0))
    text = page_text(report(simulation=simulation(arms=arms, break_even=rule)))
    # 2.5 points of 30 days of 280 GPUs, by ten moves
    assert f"failure_forecast (0.3, {0.025 * 30 * 24 * 280 / 10:.3g})" in text
    assert "(10800 GPU-s with all standbys there" in text
    assert "16200 for the last of them)" in text


def test_the_page_tells_what_each_policy_did_and_why_not():
    text = page()
    assert "migrate 3, cordon 2" in text
    assert "cordoned_share: need at most 10 % of nodes cordoned" in text
    assert "n3 1, n4 0.5" in text
    assert "node cordoned" in text


def test_a_trace_without_a_failure_shows_nothing_and_says_so():
    text = page_text(report(trace={**TRACE, "failures": 0}))
    assert "The trace has no failure: nothing can be shown." in text
    assert "The trace has no failure" not in page()


def test_the_links_at_the_top_lead_somewhere():
    text = page()
    for anchor in re.findall(r'href="#(\w+)"', text.split("</nav>")[0]):
        assert f'id="{anchor}"' in text, anchor
