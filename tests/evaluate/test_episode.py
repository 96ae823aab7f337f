"""The episode of a seed: the time of the run, its nodes, and its failures."""

import dataclasses
import itertools

import numpy as np
import pytest
from msgspec.structs import replace

from tests.evaluate.episodes import DAY_NS, DAYS, HOUR_NS, JOB, NODES, START_NS, event, write
from tests.trace.small import bundle
from torchloom_core.floor.errors import TraceError
from torchloom_core.lab.evaluate.goodput.episode import draw, opened, rng, span_ns
from torchloom_core.lab.trace.bundle.schema import Component
from torchloom_core.wire.events import NodeFault

END_NS = START_NS + DAYS * DAY_NS
FROM_NS = START_NS + 48 * HOUR_NS
_NUMBERS = itertools.count()
ALL = replace(JOB, spares=3, days=4.0, repair_s=7200.0)
"""All eight nodes from the third day to the end: the start is the same for each seed."""


def drawn(path, events=(), *, evaluate=ALL, seed=0, topology=None, **more):
    bundle = write(path / f"{next(_NUMBERS)}.tltrace", events)
    if topology is not None:
        bundle.topology = lambda: topology
    options = {"unknown": "component", "from_ns": FROM_NS, **more}
    return draw(bundle, evaluate, seed, **options)


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    return write(tmp_path_factory.mktemp("trace") / "empty.tltrace", [])


# --- when ---


@pytest.mark.parametrize(
    ("days", "from_ns", "wanted"),
    [
        (2.0, None, (START_NS, END_NS, 2 * DAY_NS)),
        (2.0, START_NS - DAY_NS, (START_NS, END_NS, 2 * DAY_NS)),
        (2.0, START_NS + DAY_NS, (START_NS + DAY_NS, END_NS, 2 * DAY_NS)),
        (9.0, START_NS + DAY_NS, (START_NS + DAY_NS, END_NS, 5 * DAY_NS)),
        (9.0, END_NS - 1, (END_NS - 1, END_NS, 1)),
    ],
)
def test_a_run_lasts_for_its_days_or_to_the_end_of_the_trace(empty, days, from_ns, wanted):
    assert span_ns(empty, replace(JOB, days=days), from_ns) == wanted


@pytest.mark.parametrize("after_ns", [0, DAY_NS])
def test_no_time_after_the_training_is_one_line(empty, after_ns):
    with pytest.raises(TraceError) as caught:
        span_ns(empty, JOB, END_NS + after_ns)
    assert str(caught.value) == (
        f"{empty.path}: need time after the models' training, was none of 6 days"
    )


def test_runs_begin_at_random_between_the_first_moment_and_the_last_that_leaves_time(empty):
    evaluate = replace(JOB, days=DAYS - 1e-12 * 3)  # 259 ns less than all of the trace
    stages = [draw(empty, evaluate, n, unknown="component") for n in range(60)]
    late_ns = np.array([stage.start_ns - START_NS for stage in stages])
    assert late_ns.min() >= 0
    assert late_ns.max() <= 259
    assert len(set(late_ns.tolist())) > 40
    assert {stage.end_ns - stage.start_ns for stage in stages} == {DAYS * DAY_NS - 259}
    whole = draw(empty, replace(JOB, days=9.0), 0, unknown="component")
    assert (whole.start_ns, whole.end_ns, whole.wall_s) == (START_NS, END_NS, DAYS * 86_400.0)


# --- on which nodes ---


def test_the_nodes_are_drawn_the_jobs_first_and_no_more_than_are_paid_for(empty, tmp_path):
    stage = drawn(tmp_path, evaluate=replace(JOB, days=4.0))
    assert len(stage.nodes) == len(set(stage.nodes)) == 7
    assert set(stage.nodes) < set(NODES)
    assert stage.job_nodes == stage.nodes[:4]
    drawings = [rng(seed, "nodes").permutation(8).tolist() for seed in range(2)]
    stages = [draw(empty, ALL, seed, unknown="component").nodes for seed in range(2)]
    assert stages == [tuple(NODES[i] for i in order) for order in drawings]
    wide = drawn(tmp_path, evaluate=replace(ALL, groups=2, nodes_per_group=2, spares=2))
    assert (len(wide.job_nodes), len(wide.nodes)) == (4, 8)


def test_a_fleet_that_is_too_small_for_the_job_is_one_line(empty):
    with pytest.raises(TraceError) as caught:
        draw(empty, replace(JOB, spares=4), 0, unknown="component")
    assert str(caught.value) == (
        f"{empty.path}: need 9 nodes for the job, its standbys and spares, was 8; see groups, "
        "standbys and spares in [evaluate]"
    )


@pytest.mark.parametrize(
    ("at_h", "fields", "away"),
    [
        (47, {"t_resolved": None}, True),
        (46, {"t_resolved": None}, False),
        (45, {"t_resolved": None, "t_avail": START_NS + 47 * HOUR_NS}, False),
        (48, {"t_resolved": None}, True),
        (48.1, {"t_resolved": None}, False),
        (47, {"t_resolved": None, "fatal": False}, False),
        (40, {"t_resolved": FROM_NS + 1}, True),
        (47, {"t_resolved": FROM_NS}, False),
    ],
)
def test_a_node_under_repair_at_the_start_comes_last(tmp_path, at_h, fields, away):
    usual = drawn(tmp_path).nodes
    found = drawn(tmp_path, [event(0, at_h, usual[2], **fields)]).nodes
    assert found == ((*usual[:2], *usual[3:], usual[2]) if away else usual)


@pytest.mark.parametrize(
    ("there", "away"),
    [
        ({"from_ns": FROM_NS}, False),
        ({"from_ns": FROM_NS + 1}, True),
        ({"until_ns": FROM_NS}, True),
        ({"until_ns": FROM_NS + 1}, False),
        ({"from_ns": START_NS, "until_ns": END_NS}, False),
    ],
)
def test_a_node_that_is_not_there_at_the_start_comes_last(tmp_path, there, away):
    usual = drawn(tmp_path).nodes
    parts = [
        Component(id=name, kind="node", **(there if name == usual[2] else {})) for name in NODES
    ]
    found = drawn(tmp_path, [event(0, 1.0, "n0")], topology=parts).nodes
    assert found == ((*usual[:2], *usual[3:], usual[2]) if away else usual)


def test_a_silent_node_at_the_start_is_drawn_last(tmp_path):
    usual = [NODES[i] for i in rng(0, "nodes").permutation(8).tolist()]
    for silent in ("", usual[2]):
        hours = {node: 12 if node == silent else 24 * DAYS for node in NODES}
        reports = [(h * 3600, node, "x", 1.0) for node in NODES for h in range(hours[node])]
        trace = bundle(tmp_path / f"t{silent}", [], reports, seconds=24 * 3600 * DAYS)
        stage = draw(trace, ALL, 0, unknown="component", from_ns=FROM_NS)
        assert stage.nodes == tuple(sorted(usual, key=lambda node: node == silent))


# --- what concerns it ---


def test_only_failures_of_its_own_nodes_in_its_own_time_concern_a_run(tmp_path):
    usual = drawn(tmp_path, evaluate=replace(JOB, days=2.0), from_ns=START_NS + 4 * DAY_NS).nodes
    (elsewhere,) = {*NODES} - {*usual}
    events = [
        event(0, 95.0, usual[0], t_resolved=START_NS + 96 * HOUR_NS),
        event(1, 97.0, usual[0]),
        event(2, 98.0, usual[5]),
        event(3, 99.0, elsewhere),
        event(4, 100.0, usual[1], follows="job"),
        event(5, 101.0, usual[5], follows="job"),
        event(6, 102.0, usual[1], follows="unknown"),
        event(7, 103.0, usual[2], fatal=False),
    ]
    options = {"evaluate": replace(JOB, days=2.0, repair_s=60.0), "from_ns": START_NS + 4 * DAY_NS}
    stage = drawn(tmp_path, events, **options)
    assert [hit.id for hit in stage.hits] == ["e1", "e2", "e4", "e6"]
    assert (stage.failures, stage.mtbf_s) == (3, 2 * 86_400.0 / 3)
    assert dataclasses.replace(stage, failures=0).mtbf_s == 2 * 86_400.0
    assert stage.hits[3].nodes == (usual[1],)
    other = drawn(tmp_path / "other", events, unknown="job", **options)
    assert other.hits[3].nodes == ()
    faults = stage.observable_faults
    assert [message.id for _, message in faults] == [f"e{number}" for number in range(8)]
    assert all(isinstance(message, NodeFault) for _, message in faults)
    assert [ts_ns for ts_ns, _ in faults[:2]] == [
        stage.start_ns,
        events[1].t_avail,
    ]
    assert (stage.seed, stage.job_size) == (0, 4)
    assert stage.racks == dict.fromkeys(NODES, "")


def test_an_episode_is_that_of_its_bundle_and_drawn_once(empty):
    options = {"unknown": "component", "from_ns": FROM_NS}
    bundle = opened(empty.path)
    assert opened(empty.path) is bundle
    stage = draw(bundle, ALL, 3, **options)
    assert draw(bundle, ALL, 3, **options) is stage
    assert stage.start_ns == FROM_NS
