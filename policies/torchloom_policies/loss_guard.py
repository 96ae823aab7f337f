"""Propose a rewind, clipping or skipped updates for a loss spike that does not recover."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated

import msgspec
import numpy as np

from torchloom_core.plugin import (
    UNSAVED_WORK,
    Alert,
    ChangeKnobs,
    FleetView,
    KnobSpec,
    Need,
    NotNegative,
    Positive,
    Proposal,
    Registry,
    RewindRun,
    Share,
    hookimpl,
)
from torchloom_policies.loss_spike import (
    REWINDS,
    Case,
    MetricBaseline,
    Pace,
    Spike,
    Step,
    SuccessRate,
    step_of,
)

_SKIP, _CLIP = "skip_updates", "clip_norm"
_LOSS, _GRAD, _UPDATE = "loss", "grad_norm", "update_norm"


class LossGuardPolicy:
    """Propose a remedy for a loss spike that lasts: rewind, clip gradients, or skip updates.

    The policy watches the loss, or ``grad_norm`` and ``update_norm`` where no loss is reported.
    It takes the median over the training workers once per tick. In a spike the median of the last
    ``patience_ticks`` values lies more than ``band`` times the noise above the trend
    (:class:`torchloom_policies.loss_spike.MetricBaseline`). Shorter spikes are ignored, and
    values of a spike never enter the baseline. If all watched metrics are missing while steps
    continue, the loss is not a finite number, and only a rewind can help.

    The ``steps`` are proposed in order: the next one if the spike lasts for another twice
    ``patience_ticks``, or returns within ``again_s``; the same one not again within
    ``cooldown_s``. Steps that the workers do not offer are skipped. The view does not show whether
    a rewind is possible, so the arbiter decides that. If the last checkpoint was saved after the
    spike began, the policy alerts instead. A level that lasts ``window_s`` becomes the baseline.

    The gain of a step is the training that the spike undid: the time in which the loss, at its
    earlier pace, fell by as much as it has risen, at most ``payback_s``. Its confidence is the
    increase in the probability of recovery: the difference of the means of two beta distributions,
    which start from the options' shares and count each attempt that the view shows as applied. Its
    cost is, for skipped updates, their time; for clipping, the share of the past gradient norms
    that would have been cut, over ``payback_s``; for a rewind, the work from before the spike that
    is repeated, and a load, assumed to take ``costs.checkpoint_s``.
    """

    name = "loss_guard"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[policies.loss_guard]``."""

        steps: Annotated[tuple[Step, ...], msgspec.Meta(min_length=1)] = ("rewind",)
        """Steps that may be proposed, in this order: of ``rewind``, ``clip`` and ``skip``. In
        experiments/loss_spikes a rewind helped most, and clipping did not help."""
        window_s: Positive = 300.0
        """Length of the baseline on which noise and trend are measured, seconds."""
        least_values: Annotated[int, msgspec.Meta(ge=3, le=100_000)] = 30
        """Minimum number of values in the baseline."""
        band: Annotated[float, msgspec.Meta(ge=1, le=1e6)] = 6.0
        """Height of a spike's median above the trend, in multiples of the noise."""
        patience_ticks: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 5
        """Number of newest values in that median, at most one per tick."""
        again_s: NotNegative = 600.0
        """A spike that returns within this time gets the next step, seconds."""
        cooldown_s: NotNegative = 600.0
        """The same step is not proposed again within this time, seconds."""
        clip_quantile: Share = 0.9
        """The norm is clipped to this quantile of its past values, 0 to 1."""
        margin_batches: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 100
        """Batches skipped after a rewind, beyond those trained since the checkpoint, because bad
        data may continue."""
        payback_s: Positive = 600.0
        """Upper bound on the training that a spike can undo, seconds."""
        heals: Share = 0.3
        skip_helps: Share = 0.6
        clip_helps: Share = 0.6
        rewind_helps: Share = 0.9
        """Prior probability, 0 to 1, that a spike recovers by itself, or after the step; each has
        the weight of four attempts."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._baselines = {
            metric: MetricBaseline(
                options.window_s, options.band, options.patience_ticks, options.least_values
            )
            for metric in (_LOSS, _GRAD, _UPDATE)
        }
        self._pace = Pace(options.window_s)
        self._spike: Spike | None = None
        self._last: Spike | None = None
        self._proposed_s: dict[Step, float] = {}
        self._make = {"skip": self._skip, "clip": self._clip, "rewind": self._rewind}
        self._heals = SuccessRate(options.heals)
        self._helps: dict[Step, SuccessRate] = {
            "skip": SuccessRate(options.skip_helps),
            "clip": SuccessRate(options.clip_helps),
            "rewind": SuccessRate(options.rewind_helps),
        }
        self.needs = (*map(Need, self._baselines), Need(UNSAVED_WORK), Need(REWINDS))

    def on_tick(self, view: FleetView) -> Iterable[Proposal]:
        """Take a value of each metric; propose the next step if a spike has lasted."""
        rows = np.flatnonzero(view.is_in("training")).tolist()
        if not rows:
            return
        moved = self._pace.look(view.now_s, step_of(view, rows))
        for metric, baseline in self._baselines.items():
            baseline.take(view.now_s, _middle(view, metric, rows), moved)
        ready = {metric: past for metric, past in self._baselines.items() if past.is_ready}
        watched = {_LOSS: ready[_LOSS]} if _LOSS in ready else ready
        lost = bool(ready) and all(past.lost for past in ready.values())
        up = {metric: past for metric, past in watched.items() if past.is_up}
        if self._spike is None:
            if not (lost or up):
                return
            self._begin(view, up, min(past.missing for past in ready.values()))
        assert self._spike is not None
        self._spike.look(view, rows)
        long = view.now_s - self._spike.since_s > self._options.window_s
        if lost or (up and not long):
            yield from self._next(Case(self._spike, up, view, rows))
        elif up or not any(past.waits for past in watched.values()):
            self._end(over=not up)

    # --- the course of a spike ---

    def _begin(self, view: FleetView, up: Mapping[str, MetricBaseline], missing: int) -> None:
        """Begin a spike, or continue the last one if it ended within ``again_s``."""
        last, at = self._last, -1
        if last is not None and view.now_s - last.seen_s <= self._options.again_s:
            at = last.at
        since_s = [past.since_s for past in up.values()] or [view.now_s - missing * view.tick_s]
        self._spike = Spike(min(since_s), at)
        for past in self._baselines.values():
            past.freeze()

    def _end(self, *, over: bool) -> None:
        """End the spike: the metric recovered, or its level is the new baseline."""
        assert self._spike is not None
        self._learn(self._spike, over=over)
        self._last, self._spike = self._spike, None
        for past in self._baselines.values():
            past.resume(reset=not over)

    def _learn(self, spike: Spike, *, over: bool) -> None:
        """Count the outcome for the last step, or for no step if it was not applied."""
        if spike.proposed is not None:
            share = self._helps[spike.proposed] if spike.done else self._heals
            share.count(over)
            spike.proposed = None

    # --- what to do about it ---

    def _next(self, case: Case) -> Iterator[Proposal]:
        """Propose the next step that is possible, pays and is not in its cooldown."""
        steps, spike, view = self._options.steps, case.spike, case.view
        if case.up:
            self._learn(spike, over=False)
        for at in range(min(spike.at + 1, len(steps) - 1), len(steps)):
            step = steps[at]
            if view.now_s - self._proposed_s.get(step, -math.inf) < self._options.cooldown_s:
                continue
            proposal = self._make[step](case)
            if proposal is None or proposal.net_gpu_s <= 0:
                continue
            self._proposed_s[step] = view.now_s
            spike.propose(at, step, proposal.action, view, case.rows)
            for past in self._baselines.values():
                past.wait(2 * self._options.patience_ticks)
            yield proposal
            return
        if case.saved_since and "rewind" in steps and not spike.alerted:
            spike.alerted = True
            text = f"{case.what}; a rewind cannot help, the last checkpoint was saved during it"
            yield Proposal(action=Alert(worker=view.workers[case.rows[0]], text=text), reason=text)

    def _skip(self, case: Case) -> Proposal | None:
        spec, pace = _fenced(_SKIP, "int", case.view), self._pace.steps_per_s
        if spec is None or not case.up or not pace:
            return None
        updates = max(1, math.ceil(case.lasts_s * pace))
        updates = updates if spec.high is None else min(updates, int(spec.high))
        what = f"skip {updates} updates, the length of the spike"
        return self._priced(
            "skip", ChangeKnobs(values={_SKIP: updates}), what, updates / pace, case
        )

    def _clip(self, case: Case) -> Proposal | None:
        spec, norms = _fenced(_CLIP, "float", case.view), self._baselines[_GRAD]
        if spec is None or not case.up or not norms.is_ready:
            return None
        share, past = self._options.clip_quantile, norms.values
        norm = float(f"{np.quantile(past, share):.3g}")
        present = case.view.knob(_CLIP)[case.rows[0]]
        clips = isinstance(present, int | float) and 0 < present <= norm
        high = math.inf if spec.high is None else spec.high
        if clips or norm <= 0 or not (spec.low or 0.0) <= norm <= high:
            return None
        cut = float(np.mean(1.0 - norm / np.maximum(past, norm)))
        what = f"clip the gradient norm at {norm:g}, the {share:.0%} quantile of its baseline"
        action = ChangeKnobs(values={_CLIP: norm})
        cost_s = cut * self._options.payback_s
        return self._priced("clip", action, what, cost_s, case)

    def _rewind(self, case: Case) -> Proposal | None:
        if case.saved_since:
            return None
        seen = math.ceil(case.unsaved_at_most_s * self._pace.steps_per_s)
        batches = seen + self._options.margin_batches
        what = f"rewind to the last checkpoint, skip {batches} batches ({seen} trained since)"
        cost_s = case.good_s + case.view.costs.checkpoint_s
        return self._priced("rewind", RewindRun(skip=batches), what, cost_s, case)

    def _priced(
        self, step: Step, action: ChangeKnobs | RewindRun, what: str, cost_s: float, case: Case
    ) -> Proposal:
        gpus, most_s = case.view.costs.gpus_per_worker * len(case.rows), self._options.payback_s
        undone_s = min((past.undone_s for past in case.up.values()), default=most_s)
        return Proposal(
            action=action,
            reason=f"{case.what}; {what}",
            gain_gpu_s=gpus * min(most_s, undone_s),
            cost_gpu_s=gpus * cost_s,
            confidence=max(0.0, self._helps[step].mean - self._heals.mean),
        )


def _middle(view: FleetView, metric: str, rows: Sequence[int]) -> float:
    """Return the median of this tick's values, NaN without any."""
    values = view.window(metric, view.tick_s)[rows, -1]
    values = values[np.isfinite(values)]
    return float(np.median(values)) if len(values) else math.nan


def _fenced(knob: str, kind: str, view: FleetView) -> KnobSpec | None:
    """Return the knob if it is run-fenced and of this kind."""
    spec = view.knob_specs.get(knob)
    return spec if spec is not None and spec.fence == "run" and spec.kind == kind else None


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the policy."""
    registry.policy(LossGuardPolicy)
