"""The protocol of a training framework: what a loom calls, and when.

An adapter is given to ``attach(adapter=...)``. The loom catches what an adapter raises, logs it
once, and training continues without that part; only :class:`Diverged` passes. Prove an adapter with
:class:`torchloom_threadlet.testing.AdapterContract`.
"""

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from torchloom_core.floor.errors import ConfigError, KnobError
from torchloom_core.wire.knobs import check_value
from torchloom_core.wire.start_phases import JOIN
from torchloom_threadlet.cleaning import whole
from torchloom_threadlet.trainer.worker import Worker

_ADMISSION_S = 5.0
_MOST_STEPS = 2**53
_SHOWN = 5
"""Unknown knobs of a checkpoint that are named."""

_logger = logging.getLogger(__name__)


class Diverged(RuntimeError):
    """Raised where a rank may differ from the others: its training must not continue."""


class Adapter:
    """A framework that adds nothing: its worker neither agrees with others nor leaves a quorum.

    All methods are called in the training thread.

    Attributes
    ----------
    framework : str
        Its name, for display.
    loom : Loom
        Whose ``knob`` and ``note`` an adapter uses.
    worker : Worker
        Its ``changes`` are the ballots of this rank, ``phases`` what it waits for.
    """

    framework = ""
    loom: Any
    worker: Worker

    def bind(self, loom: Any, worker: Worker) -> None:
        """Take the loom and the worker that this adapter serves."""
        self.loom, self.worker = loom, worker

    def rejoin(self) -> None:
        """Wait until this process may train: as a standby, or after a restart by torchrun.

        A standby returns to prepare, too. A restarted worker waits at most five seconds for the
        Weaver's decision on its node.

        Raises
        ------
        SystemExit
            With status 0, if the standby is dismissed or the restarted worker not readmitted.
        """
        worker, name = self.worker, self.worker.identity.worker
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        unwanted = ""
        if worker.linked and restarts not in ("", "0"):
            with worker.starting.phase(JOIN):
                unwanted = worker.wait_until_admitted(_ADMISSION_S)
        if unwanted:  # status 0, so that torchrun does not restart it
            self.loom.close()
            text = "%s is not readmitted: %s; the process exits with status 0"
            _logger.warning(text, name, unwanted)
            raise SystemExit(0)
        worker.wait_to_join()
        if not worker.going:
            _logger.warning("standby %s is dismissed: exiting with status 0", name)
            raise SystemExit(0)
        if worker.state != "standby":  # else it has to prepare
            worker.starting.joined()

    def manage(self, *parts: Any, **options: Any) -> None:
        """Take over what the script passes to ``loom.manage``, and register its knobs.

        The phase ``build`` of a start ends with ``self.worker.starting.built()``.
        """

    def vote(self, step: int | None) -> None:
        """Agree with the other ranks on a pending change, and make one that was agreed on.

        Called first at each step boundary, until the worker has left. A framework whose ballots
        travel another way, as with torchft's quorum, leaves this out.

        Parameters
        ----------
        step : int, optional
            The number of the step that is over, as the script passed it.

        Raises
        ------
        Diverged
            If it is unknown whether the other ranks have made a change.
        """

    def boundary(self, step: int | None) -> tuple[int | None, Mapping[str, Any]]:
        """Return the number of the step that is over, None to count, and the metrics to add."""
        return step, {}

    def saves(self) -> bool:
        """Return whether this rank's group saves checkpoints; of equal groups one does."""
        return True

    def resume(self, going: bool) -> None:
        """Take note that a step boundary is over; ``going`` is False once the worker has left."""

    def leave(self) -> None:
        """Leave the other ranks, as the worker is drained; raise if that fails."""

    def close(self) -> None:
        """Vote no more: the loom is closed, or a vote has failed."""

    def save(self) -> dict[str, Any]:
        """Return the step and the run-fenced knobs, for the script's own checkpoint.

        ``set`` holds the values to which knobs were set that a schedule has moved since,
        ``script`` those that the script had registered.
        """
        own = self.worker.actuators.registered
        present, known = self.worker.actuators.fenced_values(), self.worker.actuators.values
        moved = {name for name, value in present.items() if known.get(name, value) != value}
        return {
            "step": whole(self.worker.step),
            "knobs": present,
            "set": {name: known[name] for name in moved},
            "script": {name: own[name] for name in present.keys() & own.keys()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`save` returned; exit if a knob cannot be set.

        Knobs that have their values already, as the optimizer's with its state, stay as they are,
        and so do those whose value the script itself has changed since.
        """
        worker, knobs, step = self.worker, dict(state["knobs"]), state["step"]
        if not isinstance(step, int) or not -1 <= step < _MOST_STEPS:
            raise ConfigError(f"load_state_dict: need a step of at least -1, was {step!r:.60}")
        worker.step = step
        specs = {spec.name: spec for spec in worker.actuators.specs}
        unknown = sorted(f"{name!r:.60}" for name in knobs.keys() - specs.keys())
        if unknown:
            names = ", ".join(unknown[:_SHOWN]) + (", ..." if len(unknown) > _SHOWN else "")
            _logger.warning("knob %s of the checkpoint is not registered: it is ignored", names)
        for name in specs.keys() & knobs.keys():
            try:
                check_value(specs[name], knobs[name])
            except KnobError as error:
                _logger.warning("the checkpoint's value is ignored: %s", error)
                del knobs[name]
        own, then = worker.actuators.registered, state.get("script", {})
        for name, value in [*knobs.items()]:
            if name not in specs or worker.actuators.fenced_values().get(name) == value:
                continue
            if then.get(name, own.get(name)) != own.get(name):
                line = "knob %s: the script has %s, no longer %s: the checkpoint's %s is ignored"
                _logger.warning(line, name, own.get(name), then[name], value)
                del knobs[name]
                continue
            worker.actuators.set_like_others({name: value})
        for name, value in state.get("set", {}).items():
            if name in knobs:
                worker.actuators.hold(name, value)
        worker.announce()


def overridden(adapter: Adapter, method: str) -> Callable[..., Any] | None:
    """Return a method of an adapter; None for one that does nothing, which would cost a step."""
    is_own = getattr(type(adapter), method) is not getattr(Adapter, method)
    return getattr(adapter, method) if is_own else None


class PlainAdapter(Adapter):
    """A worker that changes alone."""

    def __init__(self, framework: str = "") -> None:
        self.framework = framework

    def manage(self, *parts: Any) -> None:
        """Register the settings of optimizers, each with its scheduler."""
        self.loom.optimizer(*parts)
        self.worker.starting.built()

    def save(self) -> dict[str, Any]:
        """Return the step and all knobs."""
        saved = super().save()
        return saved | {"knobs": self.worker.actuators.values | saved["knobs"]}
