"""Do about a spike of the loss what people do by hand, if it does not heal by itself."""

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
from torchloom_policies.loss_spike import REWINDS, Case, Pace, Spike, Step, SuccessRate, step_of
from torchloom_policies.metric_baseline import MetricBaseline

_SKIP, _CLIP = "skip_updates", "clip_norm"
_LOSS, _GRAD, _UPDATE = "loss", "grad_norm", "update_norm"


class LossGuardPolicy:
    """Propose what may end a spike that does not heal: go back, clip, or leave out updates.

    The loss is watched; where the run does not report it, ``grad_norm`` and ``update_norm`` are.
    Of each the median over the workers that train is taken, one value a tick. In a spike the
    median of the last ``patience_ticks`` values lies more than ``band`` times the run's own noise
    above its trend (:class:`torchloom_policies.metric_baseline.MetricBaseline`); what heals sooner
    is left alone, and values of a spike never get into the past that the next ones are held
    against. If all that is reported stays away while steps go on, the loss is no number, and
    nothing but to go back is of use.

    The ``steps`` are proposed in turn: the next one if the spike is still there after twice
    ``patience_ticks``, or comes back within ``again_s``; the same one not again within
    ``cooldown_s``. What the workers do not offer is left out. Whether they can go back no view
    shows, so that is for the arbiter to refuse; but where the last checkpoint is younger than the
    spike, people are told instead. A level that lasts for ``window_s`` is how the run is.

    The gain of a step is the training that the spike has undone: how long the loss took, at its
    pace before, to fall by what it has risen, and ``payback_s`` at the most or where it did not
    fall. Its confidence is how much likelier the spike is over in time after the step than without
    it: the difference of the means of two beta distributions, which begin with the options' shares
    and count each try, as far as the view shows that it was carried out. Its cost is, of updates
    left out, their time; of clipping, for ``payback_s``, the share of the past gradients' length
    that it would have cut; of going back, the work from before the spike that is done again, and
    a load, taken to be as long as ``costs.checkpoint_s``.
    """

    name = "loss_guard"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[policies.loss_guard]``.

        Attributes
        ----------
        steps : list of str
            Of ``rewind``, ``clip`` and ``skip`` those that may be proposed, in this order. By
            experiments/loss_spikes the first is worth most, and clipping nothing.
        window_s : float
            How much of the past noise and trend are measured on, seconds.
        least_values : int
            Values of the past below which nothing is known of its noise.
        band : float
            How many times the noise the median lies above the trend in a spike.
        patience_ticks : int
            How many values, at most one a tick, that median is of.
        again_s : float
            A spike that comes back this soon gets the next step, seconds.
        cooldown_s : float
            How long the same step is not proposed again, seconds.
        clip_quantile : float
            The norm is clipped to this quantile of what it was, 0 to 1.
        margin_batches : int
            Batches left out after going back, beyond those seen since the checkpoint: bad data
            may go on.
        payback_s : float
            Training that a spike can undo at the most, seconds.
        heals, skip_helps, clip_helps, rewind_helps : float
            Probability, 0 to 1, that a spike is over in time by itself, or after the step; each
            counts as much as four tries.
        """

        steps: Annotated[tuple[Step, ...], msgspec.Meta(min_length=1)] = ("rewind",)
        window_s: Positive = 300.0
        least_values: Annotated[int, msgspec.Meta(ge=3, le=100_000)] = 30
        band: Annotated[float, msgspec.Meta(ge=1, le=1e6)] = 6.0
        patience_ticks: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 5
        again_s: NotNegative = 600.0
        cooldown_s: NotNegative = 600.0
        clip_quantile: Share = 0.9
        margin_batches: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 100
        payback_s: Positive = 600.0
        heals: Share = 0.3
        skip_helps: Share = 0.6
        clip_helps: Share = 0.6
        rewind_helps: Share = 0.9

    def __init__(self, options: Options) -> None:
        self._options = options
        self._past = {
            metric: MetricBaseline(
                options.window_s, options.band, options.patience_ticks, options.least_values
            )
            for metric in (_LOSS, _GRAD, _UPDATE)
        }
        self._pace = Pace(options.window_s)
        self._spike: Spike | None = None
        self._last: Spike | None = None
        self._asked_s: dict[Step, float] = {}
        self._make = {"skip": self._skip, "clip": self._clip, "rewind": self._rewind}
        self._heals = SuccessRate(options.heals)
        self._helps: dict[Step, SuccessRate] = {
            "skip": SuccessRate(options.skip_helps),
            "clip": SuccessRate(options.clip_helps),
            "rewind": SuccessRate(options.rewind_helps),
        }
        self.needs = (*map(Need, self._past), Need(UNSAVED_WORK), Need(REWINDS))

    def on_tick(self, view: FleetView) -> Iterable[Proposal]:
        """Take a value of each metric; propose the next step if a spike has lasted."""
        rows = np.flatnonzero(view.is_in("training")).tolist()
        if not rows:
            return
        moved = self._pace.look(view.now_s, step_of(view, rows))
        for metric, past in self._past.items():
            past.take(view.now_s, _middle(view, metric, rows), moved)
        known = {metric: past for metric, past in self._past.items() if past.known}
        watched = {_LOSS: known[_LOSS]} if _LOSS in known else known
        lost = bool(known) and all(past.lost for past in known.values())
        up = {metric: past for metric, past in watched.items() if past.is_up}
        if self._spike is None:
            if not (lost or up):
                return
            self._begin(view, up, min(past.missing for past in known.values()))
        assert self._spike is not None
        self._spike.look(view, rows)
        long = view.now_s - self._spike.since_s > self._options.window_s
        if lost or (up and not long):
            yield from self._next(Case(self._spike, up, view, rows))
        elif up or not any(past.waits for past in watched.values()):
            self._end(over=not up)

    # --- the course of a spike ---

    def _begin(self, view: FleetView, up: Mapping[str, MetricBaseline], missing: int) -> None:
        """Begin a spike, as a further one of the last if that was not long ago."""
        last, at = self._last, -1
        if last is not None and view.now_s - last.seen_s <= self._options.again_s:
            at = last.at
        since_s = [past.since_s for past in up.values()] or [view.now_s - missing * view.tick_s]
        self._spike = Spike(min(since_s), at)
        for past in self._past.values():
            past.hold()

    def _end(self, *, over: bool) -> None:
        """Take the spike for healed, or else for how the run is from now on."""
        assert self._spike is not None
        self._learn(self._spike, over=over)
        self._last, self._spike = self._spike, None
        for past in self._past.values():
            past.go_on(anew=not over)

    def _learn(self, spike: Spike, *, over: bool) -> None:
        """Count whether it was over after the last step, or without it if nobody took that."""
        if spike.asked is not None:
            share = self._helps[spike.asked] if spike.done else self._heals
            share.count(over)
            spike.asked = None

    # --- what to do about it ---

    def _next(self, case: Case) -> Iterator[Proposal]:
        """Propose the first step further up that can be taken, pays and was not just proposed."""
        steps, spike, view = self._options.steps, case.spike, case.view
        if case.up:
            self._learn(spike, over=False)
        for at in range(min(spike.at + 1, len(steps) - 1), len(steps)):
            step = steps[at]
            if view.now_s - self._asked_s.get(step, -math.inf) < self._options.cooldown_s:
                continue
            proposal = self._make[step](case)
            if proposal is None or proposal.net_gpu_s <= 0:
                continue
            self._asked_s[step] = view.now_s
            spike.ask(at, step, proposal.action, view, case.rows)
            for past in self._past.values():
                past.wait(2 * self._options.patience_ticks)
            yield proposal
            return
        if case.saved_since and "rewind" in steps and not spike.told:
            spike.told = True
            text = f"{case.what}; the last checkpoint was saved since, so it is no way back"
            yield Proposal(action=Alert(worker=view.workers[case.rows[0]], text=text), reason=text)

    def _skip(self, case: Case) -> Proposal | None:
        spec, pace = _fenced(_SKIP, "int", case.view), self._pace.steps_per_s
        if spec is None or not case.up or not pace:
            return None
        updates = max(1, math.ceil(case.lasts_s * pace))
        updates = updates if spec.high is None else min(updates, int(spec.high))
        what = f"leave out {updates} updates, as many as it has lasted"
        return self._priced(
            "skip", ChangeKnobs(values={_SKIP: updates}), what, updates / pace, case
        )

    def _clip(self, case: Case) -> Proposal | None:
        spec, norms = _fenced(_CLIP, "float", case.view), self._past[_GRAD]
        if spec is None or not case.up or not norms.known:
            return None
        share, past = self._options.clip_quantile, norms.values
        norm = float(f"{np.quantile(past, share):.3g}")
        present = case.view.knob(_CLIP)[case.rows[0]]
        clips = isinstance(present, int | float) and 0 < present <= norm
        high = math.inf if spec.high is None else spec.high
        if clips or norm <= 0 or not (spec.low or 0.0) <= norm <= high:
            return None
        cut = float(np.mean(1.0 - norm / np.maximum(past, norm)))
        what = f"clip the gradients to {norm:g}, which {share:.0%} of them kept to before"
        action = ChangeKnobs(values={_CLIP: norm})
        cost_s = cut * self._options.payback_s
        return self._priced("clip", action, what, cost_s, case)

    def _rewind(self, case: Case) -> Proposal | None:
        if case.saved_since:
            return None
        seen = math.ceil(case.unsaved_at_most_s * self._pace.steps_per_s)
        batches = seen + self._options.margin_batches
        what = f"go back to the last checkpoint and leave out {batches} batches, {seen} seen since"
        cost_s = case.good_s + case.view.costs.checkpoint_s
        return self._priced("rewind", RewindRun(skip=batches), what, cost_s, case)

    def _priced(
        self, step: Step, action: ChangeKnobs | RewindRun, what: str, cost_s: float, case: Case
    ) -> Proposal:
        gpus, most_s = case.view.costs.gpus_per_worker * len(case.rows), self._options.payback_s
        return Proposal(
            action=action,
            reason=f"{case.what}; {what}",
            gain_gpu_s=gpus * min(most_s, case.setback_s(most_s)),
            cost_gpu_s=gpus * cost_s,
            confidence=max(0.0, self._helps[step].mean - self._heals.mean),
        )


def _middle(view: FleetView, metric: str, rows: Sequence[int]) -> float:
    """Return the median of this tick's values, NaN where nobody has one."""
    values = view.window(metric, view.tick_s)[rows, -1]
    values = values[np.isfinite(values)]
    return float(np.median(values)) if len(values) else math.nan


def _fenced(knob: str, kind: str, view: FleetView) -> KnobSpec | None:
    """Return the knob if it is one that all ranks change together."""
    spec = view.knob_specs.get(knob)
    return spec if spec is not None and spec.fence == "run" and spec.kind == kind else None


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the policy."""
    registry.policy(LossGuardPolicy)
