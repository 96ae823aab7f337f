"""The loom: what the training loop holds. It measures, and obeys at step boundaries.

Nothing here raises into the training loop or waits, except in a pause or a stand-by, where
waiting is what was asked for.
"""

import atexit
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from torchloom_core.messages import JoinFile, KnobSpec, KnobValue, WorkerState
from torchloom_threadlet.actuators import Knob
from torchloom_threadlet.frames import Goodbye
from torchloom_threadlet.identity import Identity
from torchloom_threadlet.worker import Worker, says

_logger = logging.getLogger(__name__)
_monotonic_ns = time.monotonic_ns

_HIGHEST_LR = 100.0
"""Above any learning rate that trains; a slip of the finger is refused instead of tried."""


class Loom:
    """One worker's connection to its Weaver; inert when there is none.

    Made by :func:`torchloom_threadlet.attach`.
    """

    def __init__(
        self,
        identity: Identity,
        join: tuple[Path, JoinFile] | None = None,
        framework: str = "",
    ) -> None:
        self._worker = Worker(identity, join, framework)
        self._append = self._worker.samples.waiting.append
        self._serial = 0
        self._complained = False
        self._pid = os.getpid()
        self._parted = not self._worker.linked
        if self._worker.linked:
            self._previous_hook = sys.excepthook
            sys.excepthook = self._on_exception
            atexit.register(self._part)
            self._worker.start()

    @property
    def worker(self) -> str:
        """The worker's id, ``<group>-<rank>``."""
        return self._worker.identity.worker

    @property
    def group(self) -> str:
        """The replica group this worker belongs to."""
        return self._worker.identity.group

    @property
    def state(self) -> WorkerState:
        """Where the worker is in its life."""
        return self._worker.state

    @property
    def inert(self) -> bool:
        """Whether there is no Weaver to talk to."""
        return not self._worker.linked

    def step(self, step: int | None = None, **metrics: Any) -> bool:
        """Say that a step is finished; obey what has been asked; return whether to go on.

        Parameters
        ----------
        step : int, optional
            The number of the finished step; one more than the last if not given.
        **metrics
            Numbers or 0-d tensors, units in the name (``loss``, ``tokens_per_s``). Tensors are
            read later, in another thread, so this never waits for the device.

        Returns
        -------
        bool
            False once the worker has been drained: leave the loop.
        """
        worker = self._worker
        try:
            worker.step = worker.step + 1 if step is None else step
            for name, value in metrics.items():
                if type(value) is not float and hasattr(value, "detach"):
                    metrics[name] = value.detach()
            self._serial += 1
            self._append((self._serial, _monotonic_ns(), metrics))
            if worker.attention:
                worker.attend()
        except Exception:
            if not self._complained:
                self._complained = True
                _logger.exception("torchloom failed at a step; training goes on")
        return worker.going

    def wait_to_join(self) -> None:
        """Wait until a stand-by is told to join; return at once if this is none."""
        self._worker.wait_to_join()

    def knob(
        self,
        name: str,
        get: Callable[[], Any],
        set: Callable[[Any], object],
        *,
        kind: Literal["float", "int", "bool", "choice"] = "float",
        low: float | None = None,
        high: float | None = None,
        choices: Iterable[str] = (),
        fence: Literal["worker", "run"] = "worker",
        unit: str = "",
        doc: str = "",
    ) -> None:
        """Register a knob: ``get()`` returns its value, ``set(value)`` is called between steps.

        A knob whose ``get`` raises is not registered, which one log line says.
        """
        spec = KnobSpec(
            name=name,
            kind=kind,
            fence=fence,
            low=low,
            high=high,
            choices=tuple(choices),
            unit=unit,
            doc=doc,
        )
        try:
            self._worker.actuators.add_knob(Knob(spec, get, set))
        except Exception as error:  # noqa: BLE001 - the user's function
            _logger.warning("knob %s is not registered: %s", name, says(error))
            return
        self._worker.send(self._worker.hello())

    def optimizer(self, optimizer: Any) -> None:
        """Register the learning rate of all of an optimizer's parameter groups as knob ``lr``."""

        def set_lr(value: float) -> None:
            for group in optimizer.param_groups:
                group["lr"] = value

        self.knob(
            "lr",
            lambda: float(optimizer.param_groups[0]["lr"]),
            set_lr,
            low=0.0,
            high=_HIGHEST_LR,
            doc="learning rate of all parameter groups",
        )

    def on_checkpoint(self, save: Callable[[], object]) -> None:
        """Have ``save()`` called, between steps, when a checkpoint is asked for."""
        self._worker.actuators.checkpoint.append(save)
        self._worker.send(self._worker.hello())

    def on_drain(self, leave: Callable[[], object]) -> None:
        """Have ``leave()`` called, between steps, before :meth:`step` returns False."""
        self._worker.actuators.drain.append(leave)

    def note(self, kind: str, **fields: KnobValue | None) -> None:
        """Tell the Weaver that something happened."""
        self._worker.note(kind, fields)

    def close(self) -> None:
        """Say that the worker leaves on purpose: however the process ends, it is expected."""
        if not self._parted and os.getpid() == self._pid:
            self._worker.enter("left")
            self._part()

    def _on_exception(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if os.getpid() == self._pid:
            self._worker.send(Goodbye(error=says(error)))
        self._previous_hook(kind, error, trace)

    def _part(self) -> None:
        # A child forked by the trainer runs this at its exit too; it is not the worker.
        if self._parted or os.getpid() != self._pid:
            return
        self._parted = True
        atexit.unregister(self._part)
        self._worker.part()
