import re
from functools import cache
from html.parser import HTMLParser

import pytest

from tests.evaluate.report.reports import TRACE, report, score
from torchloom_core.lab.evaluate.report.page import page_text

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
        "cost factor",
        "Calibration",
        "false alarms",
    ):
        assert label in text


def test_a_replay_has_no_goodput_and_a_simulation_without_forecasts_no_curves():
    replay = page_text(report(mode="replay", simulation=None))
    assert 'id="goodput"' not in replay
    assert 'id="forecasts"' in replay
    closed = page_text(report(forecasts=(), policies=()))
    assert 'id="goodput"' in closed
    assert 'id="forecasts"' not in closed


def test_a_synthetic_trace_is_marked():
    assert "synthetic trace" in page()
    recorded = {**TRACE, "synthetic": False}
    assert "synthetic trace" not in page_text(report(trace=recorded))


def test_the_page_has_proposals_and_denials_of_each_policy():
    text = page()
    assert "migrate 3, cordon 2" in text
    assert "cordoned_share: need at most 10 % of nodes cordoned" in text
    assert "n3 1, n4 0.5" in text
    assert "node cordoned" in text


def test_a_trace_without_a_failure_is_reported():
    text = page_text(report(trace={**TRACE, "failures": 0}))
    assert "The trace has no failures, so no effect shows." in text
    assert "The trace has no failure" not in page()


def test_the_links_at_the_top_lead_somewhere():
    text = page()
    for anchor in re.findall(r'href="#(\w+)"', text.split("</nav>")[0]):
        assert f'id="{anchor}"' in text, anchor
