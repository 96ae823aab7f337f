"""Warnings are logged once per minute and key, for a limited number of keys."""

import logging

from torchloom_core.floor.plain_text import RateLimitedLog, plain_line
from torchloom_core.live.trajectory.summaries import summarise

LOG = logging.getLogger("test")
MINUTE_NS = 60 * 10**9


def test_a_key_is_logged_once_a_minute_and_counted_each_time(caplog):
    now = [0]
    complaints = RateLimitedLog(LOG, lambda: now[0])
    for now[0] in (0, 1, MINUTE_NS - 1, MINUTE_NS, MINUTE_NS + 1):
        complaints.add("a", "no")
    assert complaints.count == 5
    assert [r.getMessage() for r in caplog.records] == ["no (1 so far)", "no (4 so far)"]


def test_ever_new_keys_do_not_fill_the_log(caplog):
    now = [0]
    complaints = RateLimitedLog(LOG, lambda: now[0])
    for number in range(10_000):
        complaints.add(f"key {number}", "no")
    assert len(caplog.records) == 64
    now[0] = MINUTE_NS
    complaints.add("another", "no")
    assert len(caplog.records) == 65
    assert complaints.count == 10_001


def test_a_line_is_one_line_of_plain_characters():
    assert plain_line("a\n\tb\x1b[2J\u202e" + "c" * 999) == "a b\\x1b[2J\\u202e" + "c" * 292


def test_quoted_text_in_a_summary_adds_no_line_and_moves_no_cursor():
    error = "x\n2026-01-01 00:00:00,000 WARNING verdict: p1.1\x1b[2J\x07 granted"
    ended = {"status": 1, "expected": False, "step": -1, "error": error}
    assert summarise("exit", ended) == (
        "ended with status 1 before its first step: "
        "x 2026-01-01 00:00:00,000 WARNING verdict: p1.1\\x1b[2J\\x07 granted"
    )
    long = {"text": "y" * 5000}
    assert summarise("notice", long) == long["text"]
