"""The slowest link of a trace, and traces with invalid links."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulate.links import write_links
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import TraceError
from torchloom_core.lab.simulate.links import Bottleneck, links_of
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import Component
from torchloom_core.lab.trace.synthetic.parameters import START_NS

BOTH = [(0.0, "w0", 100.0), (0.0, "w1", 80.0)]

PIECES = st.lists(
    st.tuples(st.floats(0.1, 100.0), st.floats(1e3, 1e9)), min_size=1, max_size=6
).map(lambda pieces: tuple(zip(*pieces, strict=True)))


@given(PIECES, st.floats(0.0, 1000.0), st.floats(0.0, 1e10))
def test_sent_bytes_arrive_at_the_computed_time(pieces, from_s, sent_bytes):
    lengths, rates = pieces
    ends = list(itertools.accumulate(lengths, initial=0.0))
    wire = Bottleneck(ends[:-1], rates, ends[-1])
    until_s = wire.when(wire.carried(from_s) + sent_bytes)
    assert wire.carried(until_s) - wire.carried(from_s) == pytest.approx(
        sent_bytes, rel=1e-6, abs=1e-3 * max(rates)
    )


def test_the_recording_is_repeated_at_its_end():
    wire = Bottleneck([0.0, 10.0], [100.0, 10.0], 20.0)
    assert wire.carried(20.0) == 1100.0
    assert wire.carried(25.0) == 1600.0
    assert wire.when(1600.0) == 25.0


def test_the_slowest_link_of_each_moment_sets_the_pace(tmp_path):
    values = [*BOTH, (2.0, "w0", 30.0), (3.0, "w1", 10.0), (4.0, "w0", 500.0), (5.0, "w1", 90.0)]
    links = links_of(write_links(tmp_path / "x.tltrace", values, span_s=10.0))
    assert links.workers == ("w0", "w1")
    assert links.bottleneck.at_s == (0.0, 2.0, 3.0, 5.0)
    assert links.bottleneck.bytes_per_s == (80.0, 30.0, 10.0, 90.0)


def test_each_link_has_its_last_value_and_repeats_the_recording(tmp_path):
    values = [*BOTH, (2.0, "w0", 30.0), (3.0, "w1", 10.0)]
    own = links_of(write_links(tmp_path / "x.tltrace", values, span_s=10.0))
    at_s = (0.0, 1.9, 2.0, 3.5, 9.9, 10.0, 12.0)
    assert [own.bytes_per_s(0, ts_s) for ts_s in at_s] == [100, 100, 30, 30, 30, 100, 30]
    assert [own.bytes_per_s(1, ts_s) for ts_s in at_s] == [80, 80, 80, 10, 10, 80, 80]
    late = links_of(Bundle.open(tmp_path / "x.tltrace"), START_NS + 5 * SECOND_NS)
    assert [late.bytes_per_s(row, 0.0) for row in (0, 1)] == [30, 10]


def test_a_link_is_no_faster_than_its_slowest_component(tmp_path):
    values = [*BOTH, (2.0, "rack", 50.0), (4.0, "rack", 90.0)]
    nodes = [Component(id=name, kind="node", parents=("rack",)) for name in ("w0", "w1")]
    path = tmp_path / "x.tltrace"
    bundle = write_links(
        path, values, span_s=10.0, parts=[*nodes, Component(id="rack", kind="rack")]
    )
    own = links_of(bundle)
    # All is known, and the run begins, at 2 s.
    assert [own.bytes_per_s(0, ts_s) for ts_s in (0.0, 2.0)] == [50, 90]
    assert [own.bytes_per_s(1, ts_s) for ts_s in (0.0, 2.0)] == [50, 80]


def test_a_run_begins_when_all_links_have_a_value(tmp_path):
    values = [(0.0, "w0", 100.0), (1.0, "w0", 50.0), (4.0, "w1", 80.0), (6.0, "w0", 20.0)]
    links = links_of(write_links(tmp_path / "x.tltrace", values, span_s=10.0))
    assert links.start_ns == START_NS + 4 * SECOND_NS
    assert links.bottleneck.at_s == (0.0, 2.0)
    assert links.bottleneck.bytes_per_s == (50.0, 20.0)
    assert links.bottleneck.span_s == 6.0


def test_nothing_before_the_requested_start_is_played(tmp_path):
    bundle = write_links(tmp_path / "x.tltrace", [*BOTH, (2.0, "w0", 30.0)], span_s=10.0)
    links = links_of(bundle, START_NS + 5 * SECOND_NS)
    assert links.bottleneck.bytes_per_s == (30.0,)
    assert links.bottleneck.span_s == 5.0


@pytest.mark.parametrize(
    ("values", "nodes", "expected"),
    [
        (BOTH, ("w0", "w1", "w2"), "need link_bytes_per_s of every worker, was none for w2"),
        ([], ("w0", "w1"), "was none for w0, w1"),
        (BOTH[:1], ("w0",), "need link_bytes_per_s of at least 2 workers, was 1"),
        ([*BOTH, (3.0, "w1", 0.0)], ("w0", "w1"), "> 0, was 0 for w1 at 2026-01-01T00:00:03Z"),
        ([*BOTH, (3.0, "w1", -1.0)], ("w0", "w1"), "> 0, was -1 for w1"),
        ([*BOTH, (3.0, "w0", float("inf"))], ("w0", "w1"), "> 0, was inf for w0"),
    ],
    ids=["missing", "all missing", "one alone", "zero", "negative", "endless"],
)
def test_invalid_links_are_refused_in_one_line(tmp_path, values, nodes, expected):
    bundle = write_links(tmp_path / "x.tltrace", values, span_s=10.0, nodes=nodes)
    with pytest.raises(TraceError) as error:
        links_of(bundle)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)
