"""Set the knobs of the allreduce for the most progress per second at the present bandwidth."""

import math
from collections.abc import Iterable, Iterator

from torchloom_core.plugin import ChangeKnobs, FleetView, Need, Proposal, Registry, hookimpl
from torchloom_policies.allreduce.cost import CostModel
from torchloom_policies.allreduce.knob_change import (
    ChangeTracker,
    GuardMetric,
    Measured,
    Purpose,
    Settings,
)
from torchloom_policies.allreduce.link_watch import LinkWatch
from torchloom_policies.allreduce.mode_choice import (
    ModeChoice,
    ModeRecord,
    Option,
    probability_above_zero,
)
from torchloom_policies.allreduce.modes import PRIORS, QUALITY, AllreduceTunerOptions
from torchloom_policies.allreduce.settings import Candidate, SettingTuner
from torchloom_policies.allreduce.step_samples import NEEDS, StepReader, StepSample
from torchloom_policies.allreduce.tuned_run import (
    EVERY,
    MODE,
    RING,
    Alerts,
    TunedRun,
    tuned_run,
)

_CLEAR = _CHANGED = math.log(1.5)
_SURE = 0.95
_TRIAL = 3
"""Factor on the measured steps for a setting without a cost model."""


class AllreduceTunerPolicy:
    """Propose the compression mode, and other run-fenced knobs, with the most progress per second.

    A model of the step's cost (:class:`torchloom_policies.allreduce.cost.CostModel`) is fitted
    to telemetry and probes. A mode is rated by its quality over the seconds of a step, which is
    time to a loss; one that is better by ``hysteresis`` is proposed with a guard. The gain is the
    GPU time that it saves within ``horizon_s``, the confidence the probability that it is better,
    by the model's uncertainty; the cost is one step. Settings that never ran are tried if they may
    be better, for ``explore_gpu_s`` in total. One change at a time is in progress, until
    ``settle_steps`` steps were measured. If progress fell, the change is undone, and not tried
    again at that bandwidth for ``forgive_s``. A rollback by a guard lowers a mode's quality.
    """

    name = "allreduce_tuner"
    Options = AllreduceTunerOptions

    def __init__(self, options: AllreduceTunerOptions) -> None:
        self._options = options
        self._model = CostModel(dict.fromkeys((*PRIORS, *options.modes)))
        quality = {**QUALITY, **options.quality}
        self._record = ModeRecord(quality, options.forgive_s, options.penalty)
        self._choice = ModeChoice(self._model, self._record, options.hysteresis)
        self._changes = ChangeTracker(options.settle_steps)
        self._watched = GuardMetric(options)
        self._links = LinkWatch(options, self._model)
        self._settings = SettingTuner(options, self._model)
        self._reader = StepReader()
        self._left_gpu_s = options.explore_gpu_s
        self._proposed: dict[str, tuple[float, float]] = {}
        self._alerts = Alerts(options)
        self._may_lose = any(self._record.quality(mode) < 1.0 for mode in options.modes)
        self._before_s = math.nan
        self._mode = ""
        self._streak: tuple[str, int] = "", 0
        self._sample: StepSample | None = None
        self.needs = (*NEEDS, Need(options.guard_metric))

    def on_tick(self, view: FleetView) -> Iterable[Proposal]:
        """Learn from the last step; propose a change where one is worth it."""
        run = tuned_run(view)
        if run is None:
            self._reader.skip(view)
            return
        yield from self._alerts.alert(run.trouble, view, run)
        if not run.settings or run.mode not in self._model.modes:
            self._reader.skip(view)
            return
        elapsed_s = 0.0 if math.isnan(self._before_s) else view.now_s - self._before_s
        self._model.link.pass_time(elapsed_s)
        self._before_s = view.now_s
        self._notice(view, run)
        measured = self._learn(view, run)
        if self._sample is None:
            yield from self._alerts.alert_missing_metrics(view, run)
            return
        if measured is not None:
            yield from self._judge(measured, view, run)
        yield from self._alerts.alert_unknown_modes(view, run)
        yield from self._alerts.alert(self._links.trouble, view, run)
        if self._sample.now_s == view.now_s and self._may_lose:
            yield from self._alerts.alert(self._watched.trouble(view.now_s), view, run)
        if self._changes.proposed is None and self._model.ready:
            yield from self._next(view, run)

    # --- observation ---

    def _notice(self, view: FleetView, run: TunedRun) -> None:
        """Detect which change was applied, and which was rolled back."""
        step_s = self._sample.step_s if self._sample else 0.0
        self._watched.look(view, run.rows, step_s)
        back = self._changes.look(
            run.settings, run.step, view.now_s, step_s, self._watched.window_s
        )
        if back is not None and MODE in back.values:
            self._record.hurt(str(back.values[MODE]), view.now_s)
        elif back is not None:
            self._record.refused(_describe(back.values), view.now_s)
        if self._changes.just_landed and self._changes.settling is not None:
            self._proposed.pop(_describe(self._changes.settling.values), None)  # it was not denied
            if RING in self._changes.settling.values:
                self._model.link.widen()
        if run.mode != self._mode or self._changes.just_landed:
            self._mode = run.mode
            self._reader.skip(view)  # the newest step may have the earlier settings

    def _learn(self, view: FleetView, run: TunedRun) -> Measured | None:
        """Take the newest step and the newest probes; return the measured effect of a change."""
        sample = self._reader.read(view, run.rows, run.mode, run.every)
        jumped = self._links.look(view, run)
        if sample is None:
            if jumped:
                self._changes.jumped()
            return None
        self._sample = sample
        jumped |= self._links.check(sample)
        if self._model.learn(sample):
            jumped = True
            self._links.hurry(view.now_s)
        elif self._model.link.is_suspect:
            self._links.hurry(view.now_s)
        self._streak = self._streak[0], self._streak[1] + 1
        return self._changes.measure(sample, jumped)

    def _judge(self, measured: Measured, view: FleetView, run: TunedRun) -> Iterator[Proposal]:
        """Propose to undo a change that lowered progress, or a trial that did not raise it."""
        change = measured.change
        tried = change.purpose == "try" and MODE not in change.values
        if change.purpose == "back" or not (measured.worse or (tried and not measured.better)):
            return
        if MODE in change.values:
            mode = str(change.values[MODE])
            self._record.was_slow(mode, self._model.link.bytes_per_s, view.now_s)
        elif measured.worse:
            self._record.refused(_describe(change.values), view.now_s)
        loss = abs(measured.gain)
        than = f"progress per second than {_describe(change.before)}"
        found = (
            f"made {-math.expm1(measured.gain):.0%} less {than}"
            if measured.worse
            else f"made no significantly higher {than}, "
            f"{math.expm1(measured.gain):+.1%} ±{math.expm1(measured.noise):.1%}"
        )
        yield from self._propose(
            Candidate(
                values=change.before,
                purpose="back",
                gain=max(loss, math.log1p(self._options.hysteresis)),
                confidence=probability_above_zero(loss, measured.noise),
                quality=-change.quality,
                why=f"{_describe(change.values)} {found}, measured over {len(change.after_s)} "
                + ("steps" if self._sample is None or self._sample.every == 1 else "rounds"),
            ),
            view,
            run,
        )

    # --- choice ---

    def _next(self, view: FleetView, run: TunedRun) -> Iterator[Proposal]:
        """Propose the best change; while another is being measured only a clear improvement."""
        option = self._choice.better(run.mode, self._modes(run), view.now_s)
        if option is None:
            self._streak = "", 0
        if self._changes.settling is not None and (
            option is None
            or option.gain < _CLEAR
            or option.confidence < _SURE
            or not self._changes.settling.after_s
        ):
            return
        stands = option is not None and self._is_stable(option)
        if option is not None and stands:
            yield from self._propose(self._candidate(option, "better", option.gain, run), view, run)
            if self._changes.proposed is not None:
                return
        skips_price_check = option is None or stands  # no mode waits for its next step
        settled = self._changes.settling is None
        for better in (self._settings.better, self._links.better_ring):
            if settled and skips_price_check and self._changes.proposed is None:
                candidate = better(run, view)
                if candidate is not None:
                    yield from self._propose(candidate, view, run)
        if not settled or self._changes.proposed is not None:
            return
        modes = self._modes(run)
        stake = self._choice.at_stake(run.mode, modes, view.now_s)
        assert self._sample is not None
        probes = list(self._links.probes(view, run, stake, self._sample.wire_s))
        yield from probes
        if probes or not skips_price_check or not self._changes.well_measured:
            return
        stable_s, is_news = self._changes.stable_s(view.now_s), self._changes.is_news
        trial = self._choice.worth_trying(run.mode, modes, view.now_s, stable_s, is_news)
        found = None if trial is None else self._candidate(trial, "try", trial.upper_gain, run)
        found = found or self._settings.trial(run)
        if found is None:
            return
        price_gpu_s = self._price_of_trial(found, view, run)
        if price_gpu_s <= self._left_gpu_s:
            yield from self._propose(found, view, run)
            self._left_gpu_s -= 0.0 if self._changes.proposed is None else price_gpu_s

    def _is_stable(self, option: Option) -> bool:
        """Return whether the mode is clearly better, or better for ``settle_steps`` steps."""
        if option.mode != self._streak[0]:
            self._streak = option.mode, 1
        return option.gain >= _CLEAR or self._streak[1] >= self._options.settle_steps

    def _modes(self, run: TunedRun) -> list[str]:
        """Return the modes that may be proposed: without a guard only lossless ones."""
        return [
            mode
            for mode in run.modes(self._options.modes)
            if self._watched.is_sufficient or self._record.quality(mode) >= 1.0
        ]

    def _candidate(self, option: Option, purpose: Purpose, gain: float, run: TunedRun) -> Candidate:
        present = self._model.cost(run.mode)
        assert present is not None
        seconds = f"{option.cost.step_s:.3g} s a step"
        trial = ", which never ran at this bandwidth and is a trial," if purpose == "try" else ""
        wire_s = present.wire_s / present.every
        worth = f", each worth {option.quality:.2g}" if option.quality < 1 else ""
        quality_now = self._record.quality(run.mode)
        own = f", each worth {quality_now:.2g}" if quality_now < 1 else ""
        quality = math.log(option.quality / quality_now)
        return Candidate(
            values={MODE: option.mode},
            purpose=purpose,
            gain=gain,
            confidence=option.confidence,
            quality=quality,
            why=f"{run.mode} takes {present.step_s:.3g} s a step{own}, {wire_s:.3g} s of it "
            f"wire time; {option.mode}{trial} is expected to take {seconds}{worth}",
        )

    def _price_of_trial(self, candidate: Candidate, view: FleetView, run: TunedRun) -> float:
        assert self._sample is not None
        own_s = self._sample.mean_s
        other = self._model.cost(str(candidate.values.get(MODE, run.mode)))
        slower_s = 0.1 * own_s + max(0.0, (other.step_s if other else own_s) - own_s)
        return self._options.settle_steps * self._sample.every * slower_s * _gpus(view, run)

    # --- proposals ---

    def _propose(self, candidate: Candidate, view: FleetView, run: TunedRun) -> Iterator[Proposal]:
        """Propose a change once, and again after ``cooldown_s`` or at another bandwidth."""
        assert self._sample is not None
        gpus = _gpus(view, run)
        off, link = self._model.error, self._model.link
        accuracy = f"±{math.expm1(link.log_sd):.0%}" if link.log_sd < 1 else "uncertain"
        proposal = Proposal(
            action=ChangeKnobs(values=dict(candidate.values), guard=self._watched.guard),
            reason=f"{8e-6 * link.bytes_per_s:.3g} Mbit/s, {accuracy}: {candidate.why}"
            + ("" if math.isnan(off) else f"; model error {off:.0%}"),
            gain_gpu_s=-math.expm1(-candidate.gain) * self._options.horizon_s * gpus,
            cost_gpu_s=min(self._sample.step_s, self._options.horizon_s) * gpus,
            confidence=min(max(candidate.confidence, 0.0), 1.0),
        )
        if (
            candidate.purpose != "back" and self._blocked(candidate, view)
        ) or proposal.net_gpu_s <= 0:
            return
        self._proposed[_describe(candidate.values)] = view.now_s, math.log(link.bytes_per_s)
        times = 1 if candidate.values.keys() & {MODE, EVERY} else _TRIAL
        self._changes.propose(
            candidate.values, candidate.purpose, candidate.quality, view.now_s, times
        )
        self._settings.proposed(candidate, run.mode)
        yield proposal

    def _blocked(self, candidate: Candidate, view: FleetView) -> bool:
        """Return whether it was rolled back, or proposed recently at this bandwidth."""
        if self._record.was_refused(_describe(candidate.values), view.now_s):
            return True
        since_s = view.now_s - self._options.cooldown_s
        self._proposed = {k: v for k, v in self._proposed.items() if v[0] > since_s}
        then = self._proposed.get(_describe(candidate.values))
        bandwidth = math.log(self._model.link.bytes_per_s)
        return then is not None and abs(bandwidth - then[1]) < _CHANGED


def _gpus(view: FleetView, run: TunedRun) -> float:
    return view.costs.gpus_per_worker * len(run.rows)


def _describe(values: Settings) -> str:
    return ", ".join(f"{knob} = {value}" for knob, value in sorted(values.items()))


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the policy."""
    registry.policy(AllreduceTunerPolicy)
