"""The preview of a knob change: what a script offers its standby, and its order.

The control arm runs first: without it the change's effect is unknown. Both arms of a pair start
from the same state with the run's desired knob values, and have the same data and random numbers;
each pair starts at another place in the data. The worker calls :meth:`Preview.run` in the
thread that waits.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from torchloom_core.floor.errors import KnobError
from torchloom_core.wire.knobs import check_value, find_spec
from torchloom_core.wire.limits import KnobValue
from torchloom_core.wire.operations import Rehearse
from torchloom_core.wire.preview import Arm, Curve, Setup
from torchloom_core.wire.standby_task import MOST, Loss
from torchloom_threadlet.cleaning import error_line
from torchloom_threadlet.preview.judgement import Pair, judge
from torchloom_threadlet.standby_tasks.progress import Budget, BudgetUsed, Report, finite
from torchloom_threadlet.standby_tasks.saved_state import (
    Loaded,
    SavedState,
    Stateful,
    loaded,
    restoring,
    restoring_random,
    seed_all,
)
from torchloom_threadlet.trainer.actuators import KnobTable, knob_of
from torchloom_threadlet.trainer.standby_tasks import Send
from torchloom_threadlet.training.optimizer_knobs import settings

_logger = logging.getLogger(__name__)

_TWICE = 2
"""Steps that the control makes twice before any comparison."""


class Preview:
    """Tries a change on a standby; see docs/preview.md.

    Parameters
    ----------
    model : torch.nn.Module
        The model to train. It and all other objects are restored afterwards, to the bit.
    optimizer : torch.optim.Optimizer
        The run's; its learning rate, betas, momentum and weight decay can be changed.
    step : callable
        Takes one training step on the run's data, and returns its loss. Its random numbers
        come from torch, Python's ``random`` or NumPy's global state.
    load : callable
        Loads the run's newest checkpoint into model and optimizer, without help of a training
        rank. It may return the checkpoint's step.
    scheduler : optional
        The optimizer's, if ``step`` steps it. The control's learning rate is then that of the
        schedule in the checkpoint.
    begin : callable, optional
        Takes a number, and starts the data at that number's place. Without it the data has
        to follow the random numbers.
    more : iterable
        Other objects that a step changes, with ``state_dict`` and ``load_state_dict``.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        step: Callable[[], float | Tensor],
        load: Callable[[], object],
        *,
        scheduler: Any = None,
        begin: Callable[[int], object] | None = None,
        more: tuple[Stateful, ...] = (),
    ) -> None:
        self._model = model
        self._step = step
        self._load = load
        self._begin = begin
        schedulers = () if scheduler is None else (scheduler,)
        self._others: tuple[Stateful, ...] = (optimizer, *schedulers, *more)
        self._knobs = KnobTable()
        self._scheduled = frozenset() if scheduler is None else frozenset({"lr"})
        for setting in settings(optimizer, scheduler):
            setting.register(self)

    def knob(
        self, name: str, get: Callable[[], Any], set: Callable[[Any], object], **more: Any
    ) -> None:
        """Offer a knob of the script; the arguments are those of ``Loom.knob``.

        A knob whose ``get`` raises is not offered, and a warning is logged.
        """
        try:
            # Here it is set together with the others or not at all, whatever its fence.
            self._knobs.add_knob(knob_of(name, get, set, **{**more, "fence": "run"}))
        except Exception as error:  # noqa: BLE001 - the user's function
            _logger.warning("knob %r cannot be previewed: %s", name, error_line(error))

    @property
    def tries(self) -> tuple[str, ...]:
        """The names of the knobs whose change can be previewed."""
        return tuple(spec.name for spec in self._knobs.specs)

    def refusal(self, trial: Rehearse) -> str | None:
        """Return why the change cannot be previewed, or None if it can."""
        try:
            for name, value in trial.values.items():
                check_value(find_spec(name, self._knobs.specs), value)
        except KnobError as error:
            return f"the script's Preview: {error}"
        return None

    def run(
        self,
        trial: Rehearse,
        worker: str,
        seconds: float,
        send: Send,
        should_stop: Callable[[], bool],
    ) -> str:
        """Train from the run's newest state with the change and without; return how far it came.

        Raises ValueError if the control differs between two runs, or its loss is no number,
        KnobError if the knobs cannot take the values, and what the script's functions raise.
        """
        whole = trial.points + 2 * _TWICE
        budget = Budget(self._step, whole, seconds, should_stop)
        report = Report(budget, whole, send)
        why = ""
        with restoring_random(), restoring(self._model, *self._others):
            try:
                budget.check()
                step = self._load()
                trained = (one for one in self._model.parameters() if one.requires_grad)
                begin = loaded(step, trained)
                newest = SavedState(self._model, *self._others)
                self._compare(trial, newest, begin, budget, report)
            except BudgetUsed as used:
                why = str(used)
        return report.end("steps", why)

    def _compare(
        self, trial: Rehearse, newest: SavedState, begin: Loaded, budget: Budget, report: Report
    ) -> None:
        now = self._other_than_loaded(trial.now)
        with self._set(now):
            present = self._knobs.fenced_values()
            self._knobs.check(trial.values)
        before = {name: present[name] for name in trial.values}
        values = {name: value for name, value in trial.values.items() if before[name] != value}

        def arm(repeat: int, of: Mapping[str, KnobValue], steps: int) -> Iterator[float]:
            newest.restore()
            with self._set(now), self._set(of):
                seed_all(trial.seed + repeat)
                if self._begin is not None:
                    self._begin(trial.seed + repeat)
                for _ in range(steps):
                    result = budget()
                    loss = float(result.detach() if isinstance(result, Tensor) else result)
                    loss = loss if abs(loss) <= MOST else loss * math.inf
                    yield loss
                    if not math.isfinite(loss):
                        return

        step_s = self._go_alike(lambda: arm(0, {}, _TWICE))
        setup = Setup(
            before=before,
            values=trial.values,
            steps=trial.steps,
            repeats=trial.repeats,
            step_s=step_s,
            at=begin.at,
            of_step=begin.of_step,
        )
        report.send(setup)
        pairs: list[Pair] = []
        for repeat in range(trial.repeats):
            control = self._run_arm("control", repeat, arm(repeat, {}, trial.steps), report)
            if not math.isfinite(control[-1]):
                raise ValueError(_no_number(control))
            change = self._run_arm("change", repeat, arm(repeat, values, trial.steps), report)
            pairs.append(Pair(control, change))
            report.send(judge(pairs, trial.steps))

    def _other_than_loaded(self, now: Mapping[str, KnobValue]) -> dict[str, KnobValue]:
        """Return the values that give the control the run's desired knob values.

        Only of knobs offered here, and neither a rate that a schedule sets nor a knob that training
        uses up.
        """
        present = self._knobs.fenced_values()
        stay = self._scheduled.union(spec.name for spec in self._knobs.specs if spec.used_up)
        other = {
            name: value
            for name, value in now.items()
            if name in present and name not in stay and present[name] != value
        }
        try:
            self._knobs.check(other)
        except KnobError as error:
            raise KnobError(f"the control cannot have the run's knob values: {error}") from None
        return other

    def _run_arm(
        self, name: Arm, repeat: int, losses: Iterator[float], report: Report
    ) -> list[float]:
        report.flush()
        taken: list[float] = []
        sent = 0

        def curve(part: tuple[Loss, ...]) -> Curve:
            nonlocal sent
            first, sent = sent, sent + len(part)
            return Curve(repeat=repeat, arm=name, first=first, losses=part)

        for loss in losses:
            taken.append(loss)
            report.gather(curve, finite(loss))
        return taken

    @contextmanager
    def _set(self, values: Mapping[str, KnobValue]) -> Iterator[None]:
        before = self._knobs.set_knobs(values)
        try:
            yield
        finally:
            self._knobs.set_back(before)

    def _go_alike(self, control: Callable[[], Iterator[float]]) -> float:
        """Return the time of a step; raise if the control differs between two runs."""
        first, weights = list(control()), self._weights()
        began_s = time.monotonic()
        second = list(control())
        step_s = (time.monotonic() - began_s) / len(second)
        if not math.isfinite(first[-1]):
            raise ValueError(_no_number(first))
        moved = zip(weights, self._weights(), strict=True)
        if first == second and all(torch.equal(a, b) for a, b in moved):
            return step_s
        were = ", ".join(f"{a!r} and {b!r}" for a, b in zip(first, second, strict=False))
        raise ValueError(
            "need a step that is reproducible from one state, so that arms can be compared, was "
            f"one of losses {were}: take its batch from the random numbers, or pass begin="
        )

    def _weights(self) -> list[Tensor]:
        return [weight.detach().clone() for weight in self._model.parameters()]


def _no_number(losses: list[float]) -> str:
    return f"need a loss that is a number in the control, was {losses[-1]} at step {len(losses)}"
