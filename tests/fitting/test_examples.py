"""Each moment that is learned from comes with what became of it, as it was known."""

import numpy as np
import pytest

from tests.evaluate.traces import HOUR_NS, HOUR_S, write_bundle
from tests.fitting.plugins import Blind, Quiet, warm
from tests.trace.small import START_NS, at, fault
from tests.trace.small import bundle as small_bundle
from torchloom_core.lab.evaluate.forecasts.labels import Task, outcomes
from torchloom_core.lab.fitting.examples import Examples
from torchloom_core.lab.trace.bundle.schema import Component
from torchloom_core.lab.trace.feed.watched import watch
from torchloom_core.plugin import Need, NeedFaults

UNTIL_NS, KNOWN_NS = 30 * 24 * HOUR_NS, 32 * 24 * HOUR_NS
TASK = Task(horizon_s=48 * HOUR_S, repair_s=24 * HOUR_S)
SETTINGS = {
    "tick_s": 2 * HOUR_S,
    "every_s": 2 * HOUR_S,
    "until_ns": UNTIL_NS,
    "known_until_ns": KNOWN_NS,
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Forty days of which each failure is known a day late."""
    path = tmp_path_factory.mktemp("traces") / "t.tltrace"
    metrics = {
        "heat": warm(),
        "reported": lambda failed: failed | np.vstack([failed[1:], failed[:1]]),
    }
    return write_bundle(path, days=40, nodes=6, rate=0.1, metrics=metrics, delay_h=24)[0]


def examples_of(bundle, metrics=(), cls=Blind, progress=lambda _: None, **more):
    plugin = cls(cls.Options(metrics=metrics))
    return Examples(bundle, plugin, TASK, progress=progress, **SETTINGS | more)


def test_outcomes_are_those_known_at_each_moment(measured):
    shares = []
    examples = examples_of(measured, progress=shares.append)
    assert (examples.moments, examples.positives) == (0, 0)
    seen = list(examples)
    times_ns = np.array([example.view.now_ns for example in seen])
    assert len(times_ns) > 256
    assert set(np.diff(times_ns)) == {2 * HOUR_NS}
    assert times_ns[-1] == UNTIL_NS
    watched, manifest = watch(measured), measured.manifest
    wanted = outcomes(
        measured.events(),
        measured.actions(),
        watched,
        times_ns,
        TASK,
        known_until_ns=KNOWN_NS,
        span=(manifest.start_ns, manifest.end_ns),
        topology=measured.topology(),
    )
    column = {name: row for row, name in enumerate(watched.ids)}
    for example, came in zip(seen, wanted, strict=True):
        own = came[[column[worker] for worker in example.view.workers]]
        assert np.array_equal(example.outcome, own, equal_nan=True)
    assert np.isnan(wanted).any()
    assert examples.moments == np.count_nonzero(~np.isnan(wanted))
    assert examples.positives == np.count_nonzero(wanted == 1.0) > 0
    assert shares[-1] == 1.0
    assert shares == sorted(shares)
    assert shares[0] == times_ns[0] / UNTIL_NS


@pytest.mark.parametrize("every_s", [2 * HOUR_S, 12 * HOUR_S])
def test_a_second_pass_gives_the_same_examples_and_counts_once(measured, every_s):
    examples = examples_of(measured, every_s=every_s)
    once = [(one.view.now_ns, one.outcome) for one in examples]
    counted = examples.moments, examples.positives
    again = [(one.view.now_ns, one.outcome) for one in examples]
    assert [at_ns for at_ns, _ in again] == [at_ns for at_ns, _ in once]
    came, came_again = (np.array([outcome for _, outcome in seen]) for seen in (once, again))
    assert np.array_equal(came, came_again, equal_nan=True)
    assert (examples.moments, examples.positives) == counted


def test_a_read_column_that_separates_the_failures_is_flagged(measured):
    examples = examples_of(measured, ("heat", "reported"), Quiet, every_s=24 * HOUR_S)
    assert examples.metrics == ("heat", "reported")
    assert examples.flags() == ()
    for _ in examples:
        pass
    none = examples_of(measured, ("heat",), Quiet)
    for _ in none:
        pass
    assert none.flags() == ()
    assert none.moments > 0
    assert examples.flags() == ("suspicious_feature: reported",)


def test_without_a_metric_or_a_failure_nothing_is_flagged(tmp_path, measured):
    bare = examples_of(measured)
    for _ in bare:
        pass
    assert (bare.metrics, bare.flags()) == ((), ())
    calm = write_bundle(tmp_path / "c.tltrace", nodes=2, rate=0.0, metrics={"heat": warm()})[0]
    examples = examples_of(calm, ("heat",), Quiet)
    for _ in examples:
        pass
    assert (examples.positives, examples.flags()) == (0, ())


SECONDS = {"tick_s": 1.0, "every_s": 1.0, "until_ns": at(10), "known_until_ns": at(10)}


@pytest.fixture(scope="module")
def late(tmp_path_factory):
    """Ten seconds, long after 1970, of a node of which something is noted and one that goes."""
    nodes = [
        Component(id="a", kind="node", extra={"model": "m1"}),
        Component(id="b", kind="node", until_ns=at(7)),
        fault(3.0, resolved_s=4.0, fatal=False),
    ]
    path = tmp_path_factory.mktemp("traces") / "t.tltrace"
    samples = [(t_s + 0.5, name, "heat", t_s) for t_s in range(10) for name in "ab"]
    return small_bundle(path, nodes, samples, seconds=10.0)


def test_components_known_to_be_silent_are_not_learned_from(tmp_path):
    samples = [(t_h * HOUR_S, node, "heat", 1.0) for t_h in range(240) for node in "ab"]
    samples = [one for one in samples if one[1] == "a" or one[0] < 120 * HOUR_S]
    trace = small_bundle(tmp_path / "t.tltrace", (), samples, seconds=240 * HOUR_S)
    for known_h, moments in ((230, 18 + 10), (130, 9 + 9)):
        pace = {"tick_s": 12 * HOUR_S, "every_s": 12 * HOUR_S}
        known_ns = at(known_h * HOUR_S)
        some = Examples(
            trace,
            Blind(Blind.Options()),
            Task(horizon_s=12 * HOUR_S, repair_s=HOUR_S),
            progress=lambda _: None,
            until_ns=known_ns,
            known_until_ns=known_ns,
            **pace,
        )
        for _ in some:
            pass
        assert some.moments == moments


def of_seconds(bundle, kind="forecast", **more):
    plugin = Blind(Blind.Options())
    some = Task(horizon_s=2.0, repair_s=1.0, kind=kind)
    return Examples(bundle, plugin, some, **{"progress": lambda _: None, **SECONDS, **more})


def test_progress_is_relative_to_the_start_of_the_trace(late):
    shares = []
    seen = [*of_seconds(late, progress=shares.append)]
    assert [one.view.now_ns - START_NS for one in seen] == [n * 10**9 for n in range(1, 11)]
    assert shares == [n / 10 for n in range(1, 11)]


def test_a_third_party_learner_that_changes_its_view_affects_only_itself(tmp_path):
    trace = small_bundle(tmp_path / "t.tltrace", [Component(id="a", kind="node")], seconds=10.0)
    shares = []
    for one in of_seconds(trace, progress=shares.append):
        one.view.now_ns = 0
    assert shares == [n / 10 for n in range(1, 11)]


def test_a_component_that_leaves_is_censored_before(late):
    came = {one.view.now_ns: dict(zip(one.view.workers, one.outcome.tolist(), strict=True))
            for one in of_seconds(late)}  # fmt: skip
    assert came[at(4)]["b"] == 0.0
    assert np.isnan([came[at(6)]["b"], came[at(9)]["a"]]).all()
    assert came[at(7)]["a"] == 0.0


def test_a_second_pass_starts_with_the_workers_of_the_first_moment(tmp_path):
    samples = [(t_s + 0.5, name, "heat", 1.0) for t_s in range(10) for name in "ab"]
    nodes = [Component(id="a", kind="node"), Component(id="b", kind="node", from_ns=at(5))]
    trace = small_bundle(tmp_path / "t.tltrace", nodes, samples, seconds=10.0)
    examples = of_seconds(trace)
    once, again = ([len(one.outcome) for one in examples] for _ in range(2))
    assert again == once
    assert {*once} == {1, 2}


def test_what_others_need_is_seen_in_passing_and_not_shown_to_the_predictor(late):
    others = (Need("heat"), NeedFaults(60.0))
    passing = of_seconds(late).passing(at(10), others=others, progress=lambda _: None)
    faults = []
    for one in passing:
        assert one.view.labels[one.view.workers.index("a")] == {"model": "m1"}
        assert 0.0 <= one.view.latest("heat")[0] <= 9.0
        faults.append({*one.view.faults_of})
    assert faults == [set()] * 2 + [{"a"}] * 8
    assert not any(label for one in of_seconds(late) for label in one.view.labels)


def test_what_passes_after_the_last_to_learn_from_has_no_outcome(late):
    examples = of_seconds(late, until_ns=at(4))
    passing = [*examples.passing(at(7), progress=lambda _: None)]
    assert [np.isnan(one.outcome).all() for one in passing] == [False] * 4 + [True] * 3
    learned = of_seconds(late, until_ns=at(4))
    assert len([*learned]) == 4
    assert (examples.moments, examples.positives) == (learned.moments, learned.positives)


def test_a_detection_hides_its_events_from_all_predictors(late):
    others = (NeedFaults(60.0),)
    passing = of_seconds(late, "detect").passing(at(10), others=others, progress=lambda _: None)
    assert [{*one.view.faults_of} for one in passing] == [set()] * 10
