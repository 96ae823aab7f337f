import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchloom_core.config.schema import Costs
from torchloom_core.plugin import UNSAVED_WORK, Alert, ChangeKnobs, KnobSpec, RewindRun
from torchloom_core.testing import view_of
from torchloom_policies.loss_guard import LossGuardPolicy

NOW_S = 1_700_000_000.0
CLIP = KnobSpec(name="clip_norm", kind="float", low=0.0, fence="run")
SKIP = KnobSpec(name="skip_updates", kind="int", low=0, high=50, fence="run", used_up=True)
KNOBS = (CLIP, SKIP)
COSTS = Costs(gpus_per_worker=8.0, checkpoint_s=2.0, unsaved_s=20.0)
ALL = ("skip", "clip", "rewind")


class Fleet:
    """Two workers that train at two steps a tick, seen by the policy."""

    def __init__(self, knobs=KNOBS, costs=COSTS, **options):
        self.policy = LossGuardPolicy(LossGuardPolicy.Options(**options))
        self.knobs, self.costs = knobs, costs
        self.ticks, self.step, self.rewinds = 0, 0, math.nan
        self.values = {"clip_norm": 0.0, "skip_updates": 0}
        self.made = []

    def tick(self, loss=math.nan, norm=math.nan, unsaved_s=math.nan, steps=2, state="training"):
        self.ticks += 1
        self.step += steps
        names = {"loss": loss, "grad_norm": norm, "update_norm": math.nan, UNSAVED_WORK: unsaved_s}
        names["rewinds_total"] = self.rewinds
        view = view_of(
            {name: [[value], [value]] for name, value in names.items()},
            step=self.step,
            now_s=NOW_S + self.ticks,
            knob_specs=self.knobs,
            knob_values=[self.values] * 2,
            costs=self.costs,
            state=state,
        )
        proposals = list(self.policy.on_tick(view))
        self.made += proposals
        return proposals

    def ticks_of(self, losses, **more):
        return [p for loss in losses for p in self.tick(loss=loss, **more)]


def noisy(ticks=100, level=2.0, noise=0.02, seed=0):
    return level + noise * np.random.default_rng(seed).normal(size=ticks)


def fleet(ticks=100, norms=True, **options):
    made = Fleet(**options)
    norm = noisy(ticks, 1.0, 0.1, seed=1)
    for loss, each in zip(noisy(ticks), norm, strict=True):
        assert not made.tick(loss=loss, norm=each if norms else math.nan)
    return made


def test_a_spike_that_recovers_by_itself_leads_to_no_proposal():
    run = fleet(patience_ticks=5)
    assert run.ticks_of([9.0, 9.0, 2.0, 2.0, 2.0, 2.0, 2.0, 9.0, 2.0, 2.0], norm=1.0) == []


def test_a_spike_that_lasts_leads_to_a_rewind_that_skips_the_batches_since():
    run = fleet(margin_batches=10)
    assert run.ticks_of([3.0] * 2, norm=1.0, unsaved_s=40.0) == []
    (proposal,) = run.tick(loss=3.0, norm=1.0, unsaved_s=40.0)
    # Two steps a tick; the two ticks of the spike do not count as lost work.
    assert proposal.action == RewindRun(skip=80 + 10)
    assert proposal.cost_gpu_s == 16 * (38.0 + 2.0)
    assert proposal.gain_gpu_s == 16 * 600.0
    assert "loss is 3, " in proposal.reason


def test_the_gain_is_the_time_in_which_the_loss_fell_by_as_much_as_it_rose():
    run = Fleet()
    falls = 4.0 - 0.01 * np.arange(100) + noisy(100, 0.0, 0.01)
    assert run.ticks_of(falls) == []
    (proposal,) = run.ticks_of([3.9] * 3)
    assert proposal.gain_gpu_s == pytest.approx(16 * 71, rel=0.1)


def test_the_steps_are_proposed_in_order_while_the_spike_lasts():
    run = fleet(steps=ALL)
    proposals = run.ticks_of([3.0] * 60, norm=1.0)
    kinds = [next(iter(getattr(p.action, "values", {"rewind": 0}))) for p in proposals]
    assert kinds == ["skip_updates", "clip_norm", "rewind"]
    skip, clip, rewind = (p.action for p in proposals)
    assert skip == ChangeKnobs(values={"skip_updates": 4})
    norms = noisy(100, 1.0, 0.1, seed=1)[:97]
    assert clip.values["clip_norm"] == pytest.approx(np.quantile(norms, 0.9), rel=0.02)
    assert rewind.skip >= 2 * 2 * 20
    assert run.ticks_of([3.0] * 200, norm=1.0) == []


@pytest.mark.slow
def test_a_spike_that_returns_soon_gets_the_next_step_and_a_later_one_the_first():
    for pause, kind in ((30, "clip_norm"), (700, "skip_updates")):
        run = fleet(steps=ALL, again_s=600.0, cooldown_s=600.0)
        assert len(run.ticks_of([3.0] * 4, norm=1.0)) == 1
        assert run.ticks_of(noisy(pause), norm=1.0) == []
        (again,) = run.ticks_of([3.0] * 4, norm=1.0)
        assert kind in again.action.values


@pytest.mark.slow
def test_a_level_that_lasts_becomes_the_baseline():
    run = fleet(window_s=100.0, cooldown_s=150.0)
    assert len(run.ticks_of(3.0 + noisy(400, 0.0), norm=1.0)) == 1
    assert len(run.ticks_of([4.0] * 4, norm=1.0)) == 1


def test_a_long_spike_does_not_hide_the_next():
    run = fleet(cooldown_s=0.0, again_s=0.0, heals=0.0)
    assert run.ticks_of([9.0] * 60, norm=1.0)
    assert run.ticks_of(noisy(20), norm=1.0) == []
    assert run.ticks_of([3.0] * 4, norm=1.0)


@pytest.mark.slow
def test_a_loss_that_is_not_finite_leads_to_a_rewind_at_once():
    run = fleet(steps=ALL)
    for _ in range(5):
        assert run.tick() == []
    (proposal,) = run.tick()
    assert isinstance(proposal.action, RewindRun)
    assert "no finite loss or norm for 6 s" in proposal.reason
    assert not any(run.tick() for _ in range(300))


@pytest.mark.parametrize("still", [{"steps": 0}, {"norm": 1.0}, {"state": "paused"}])
def test_a_loss_that_is_merely_not_reported_does_not_count_as_not_finite(still):
    run = fleet()
    assert not any(run.tick(**still) for _ in range(50))


@pytest.mark.slow
def test_a_loss_reported_only_now_and_then_does_not_count_as_missing():
    run = Fleet()
    for n in range(1000):
        assert run.tick(loss=2.0 + 0.01 * (n % 7) if n % 10 == 0 else math.nan) == []
    assert not any(run.tick() for _ in range(18))
    assert any(run.tick() for _ in range(20))


def test_norms_are_watched_only_if_no_loss_is_reported():
    run = Fleet()
    for each in noisy(100, 1.0, 0.05):
        assert run.tick(norm=each) == []
    assert any(run.tick(norm=9.0) for _ in range(6))
    run = fleet()
    assert not any(run.tick(loss=2.0, norm=9.0) for _ in range(50))


def test_a_checkpoint_saved_during_the_spike_leads_to_one_alert_and_no_rewind():
    run = fleet()
    (proposal,) = [p for n in range(30) for p in run.tick(loss=3.0, norm=1.0, unsaved_s=0.5)]
    assert isinstance(proposal.action, Alert)
    assert "a rewind cannot help" in proposal.action.text


@pytest.mark.parametrize(
    "knobs",
    [
        (),
        (KnobSpec(name="clip_norm", kind="float"), KnobSpec(name="skip_updates", kind="int")),
        (KnobSpec(name="clip_norm", kind="float", high=0.1, fence="run"),),
    ],
)
def test_steps_that_the_workers_do_not_offer_are_not_proposed(knobs):
    run = fleet(steps=ALL, knobs=knobs)
    assert {type(p.action) for p in run.ticks_of([3.0] * 60, norm=1.0)} == {RewindRun}


def test_a_run_that_already_clips_as_low_gets_no_proposal():
    run = fleet(steps=("clip",))
    run.values = {"clip_norm": 0.5, "skip_updates": 0}
    assert run.ticks_of([3.0] * 30, norm=1.0) == []


@pytest.mark.slow
def test_a_step_that_does_not_pay_is_not_proposed():
    dear = Costs(gpus_per_worker=8.0, checkpoint_s=2.0, unsaved_s=3600.0)
    assert fleet(costs=dear).ticks_of([3.0] * 60, norm=1.0) == []
    assert fleet(heals=0.9, rewind_helps=0.9).ticks_of([3.0] * 60, norm=1.0) == []


@pytest.mark.slow
def test_only_a_step_that_was_applied_without_effect_lowers_the_confidence():
    confidence = {}
    for carried_out in (True, False):
        run = fleet(steps=("clip",), cooldown_s=30.0)
        (first,) = run.ticks_of([3.0] * 4, norm=1.0)
        if carried_out:
            run.values = {"clip_norm": first.action.values["clip_norm"], "skip_updates": 0}
            run.tick(loss=3.0, norm=1.0)
            run.values = {"clip_norm": 0.0, "skip_updates": 0}
        (second,) = run.ticks_of([3.0] * 40, norm=1.0)
        confidence[carried_out] = second.confidence - first.confidence
    assert confidence[True] < 0 < confidence[False]


@pytest.mark.parametrize("how", ["the step falls", "the count of rewinds rises"])
def test_a_rewind_without_effect_lowers_the_confidence_however_it_is_detected(how):
    run = fleet(steps=("rewind",), cooldown_s=30.0)
    run.rewinds = 0.0
    first, *_ = run.ticks_of([3.0] * 5)
    if how == "the step falls":
        run.step -= 20
    else:
        run.rewinds = 1.0
    second, *_ = run.ticks_of([3.0] * 60)
    assert second.confidence < first.confidence


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    st.floats(1e-6, 1e6),
    st.lists(st.floats(0.0, 1.0), min_size=60, max_size=60),
)
def test_a_loss_that_never_rises_leads_to_no_proposal(level, falls):
    run = Fleet(patience_ticks=1, band=1.0, least_values=3)
    assert run.ticks_of(level * (1.0 - np.cumsum(falls) / 61)) == []


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.integers(-30, 30), st.integers(0, 1000))
def test_a_loss_in_other_units_gets_the_same_proposals(exponent, seed):
    losses = [*noisy(60, seed=seed), *np.random.default_rng(seed).uniform(2.0, 3.0, 20)]
    prices = []
    for scale in (1.0, 2.0**exponent):
        run = Fleet(band=2.0)
        run.ticks_of([loss * scale for loss in losses])
        prices.append([(p.action, p.gain_gpu_s, p.cost_gpu_s) for p in run.made])
    assert prices[0] == prices[1]
