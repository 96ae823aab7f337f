"""A trace as it was known at an earlier end, and not a nanosecond more."""

import numpy as np
import pytest
from msgspec.structs import replace

from tests.evaluate.traces import HOUR_NS, drain, event, write_bundle
from torchloom_core.lab.fitting.time_split import EarlierPart
from torchloom_core.lab.trace.bundle.schema import Component

END_NS = 48 * HOUR_NS


@pytest.fixture
def whole(tmp_path):
    heat = np.random.default_rng(0).random((4, 3))
    path = tmp_path / "t.tltrace"
    return write_bundle(path, days=4, nodes=3, rate=0.0, metrics={"heat": lambda _: heat})[0]


def times_h(tables):
    return sorted({at // HOUR_NS for table in tables for at in table["t_avail"].to_pylist()})


def test_events_known_before_the_end_are_included_and_those_at_it_are_not(whole):
    before, late, at = (
        event("n00000", 1),
        event("n00001", 2, known_h=48),
        replace(event("n00002", 3), t_avail=END_NS - 1),
    )
    whole.events = lambda: (before, late, at)
    whole.actions = lambda: (drain("n00000", 48), drain("n00001", 47))
    part = EarlierPart(whole, END_NS)
    assert part.events() == (before, at)
    assert part.actions() == (drain("n00001", 47),)
    assert part.manifest == replace(whole.manifest, end_ns=END_NS)


@pytest.mark.parametrize(("end_h", "known"), [(47, True), (48, False), (60, False)])
def test_an_end_is_known_if_it_is_before_the_end_of_the_part(whole, end_h, known):
    whole.events = lambda: (event("n00000", 1, end_h), event("n00001", 1))
    whole.actions = lambda: (drain("n00000", 1, end_h), drain("n00001", 1))
    there = Component(id="n00000", kind="node", until_ns=end_h * HOUR_NS)
    whole.topology = lambda: (there, Component(id="n00001", kind="node"))
    part = EarlierPart(whole, END_NS)
    wanted = (end_h * HOUR_NS if known else None, None)
    assert tuple(one.t_resolved for one in part.events()) == wanted
    assert tuple(one.t_end for one in part.actions()) == wanted
    assert tuple(one.until_ns for one in part.topology()) == wanted


def test_what_comes_later_is_not_there(whole):
    starts = (None, 0, END_NS - 1, END_NS, END_NS + 1)
    whole.topology = lambda: tuple(
        Component(id=f"n{number}", kind="node", from_ns=from_ns)
        for number, from_ns in enumerate(starts)
    )
    found = EarlierPart(whole, END_NS).topology()
    assert [one.from_ns for one in found] == [None, 0, END_NS - 1]


def test_telemetry_ends_with_the_part(whole):
    part = EarlierPart(whole, END_NS)
    assert times_h(whole.telemetry()) == [0, 24, 48, 72]
    assert times_h(part.telemetry()) == [0, 24]
    assert times_h(part.telemetry(1, 96 * HOUR_NS)) == [24]
    assert times_h(part.telemetry(0, 24 * HOUR_NS)) == [0]
    assert sum(map(len, part.telemetry(metrics=["cold"]))) == 0
