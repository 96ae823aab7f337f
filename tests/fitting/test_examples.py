"""Each moment that is learned from comes with what became of it, as it was known."""

import numpy as np
import pytest

from tests.evaluate.traces import HOUR_NS, HOUR_S, write_bundle
from tests.fitting.plugins import Blind, Quiet, warm
from torchloom_core.evaluate.forecasts.labels import Task, outcomes
from torchloom_core.fitting.examples import Examples
from torchloom_core.trace.feed.watched import watch

UNTIL_NS, KNOWN_NS = 30 * 24 * HOUR_NS, 32 * 24 * HOUR_NS
TASK = Task(horizon_s=48 * HOUR_S, repair_s=24 * HOUR_S)
TOLD = {
    "tick_s": 2 * HOUR_S,
    "every_s": 2 * HOUR_S,
    "until_ns": UNTIL_NS,
    "known_until_ns": KNOWN_NS,
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Forty days of which each failure is told a day late."""
    path = tmp_path_factory.mktemp("traces") / "t.tltrace"
    metrics = {
        "heat": warm(),
        "told": lambda failed: failed | np.vstack([failed[1:], failed[:1]]),
    }
    return write_bundle(path, days=40, nodes=6, rate=0.1, metrics=metrics, delay_h=24)[0]


def examples_of(bundle, metrics=(), cls=Blind, progress=lambda _: None, **more):
    plugin = cls(cls.Options(metrics=metrics))
    return Examples(bundle, plugin, TASK, progress=progress, **TOLD | more)


def test_the_outcomes_are_those_that_were_known_at_each_of_many_moments(measured):
    shares = []
    examples = examples_of(measured, progress=shares.append)
    assert (examples.moments, examples.positives, examples.prevalence) == (0, 0, 0.0)
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
    assert examples.prevalence == examples.positives / examples.moments
    assert shares[-1] == 1.0
    assert shares == sorted(shares)
    assert shares[0] == times_ns[0] / UNTIL_NS


def test_a_column_that_tells_the_failures_apart_is_flagged_of_those_that_are_read(measured):
    examples = examples_of(measured, ("heat", "told"), Quiet, every_s=24 * HOUR_S)
    assert examples.metrics == ("heat", "told")
    assert examples.flags() == ()
    for _ in examples:
        pass
    none = examples_of(measured, ("heat",), Quiet)
    for _ in none:
        pass
    assert none.flags() == ()
    assert none.moments > 0
    assert examples.flags() == ("suspicious_feature: told",)


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
