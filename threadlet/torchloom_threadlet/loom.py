"""The loom: a training loop's handle. It measures steps, and runs commands between them.

Nothing here blocks the training loop or raises into it, with three exceptions: a pause, a
waiting standby, and a loop that continues after a drain, which ends its process.
"""

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from torchloom_core.wire.messages import WorkerState
from torchloom_threadlet.adapter import Adapter, Diverged, overridden
from torchloom_threadlet.cleaning import error_line
from torchloom_threadlet.device.meter import DeviceMeter
from torchloom_threadlet.identity import Identity, Join
from torchloom_threadlet.ipc import Goodbye
from torchloom_threadlet.loom_functions import LoomFunctions
from torchloom_threadlet.trainer.exception_hook import ExceptionHook
from torchloom_threadlet.trainer.standby_tasks import StandbyTasks
from torchloom_threadlet.trainer.stepping_threads import SEVERAL, SteppingThreads
from torchloom_threadlet.trainer.trainer_log import TrainerLog
from torchloom_threadlet.trainer.worker import Worker
from torchloom_threadlet.training.optimizer_knobs import managed
from torchloom_threadlet.training.rounds import Rounds

if TYPE_CHECKING:
    from torchloom_threadlet.checkpoint.attached import CheckpointOptions
    from torchloom_threadlet.checkpoint.checkpointer import Checkpointer

_logger = logging.getLogger(__name__)
_monotonic_ns = time.monotonic_ns
_thread = threading.get_ident


class Loom(LoomFunctions):
    """One worker's connection to its Weaver; inert where there is no Weaver.

    Created by :func:`torchloom_threadlet.attach`.

    Attributes
    ----------
    adapter : Adapter
        The training framework.
    """

    def __init__(
        self,
        identity: Identity,
        join: Join | None,
        adapter: Adapter,
        *,
        held: bool = False,
        standby_tasks: StandbyTasks | None = None,
    ) -> None:
        self.adapter, name = adapter, adapter.framework
        self._worker = Worker(identity, join, name, held=held, standby_tasks=standby_tasks)
        adapter.bind(self, self._worker)
        self.on_drain(adapter.leave)
        self._vote, self._boundary = overridden(adapter, "vote"), overridden(adapter, "boundary")
        self._resume = overridden(adapter, "resume")
        self._append = self._worker.samples.waiting.append
        self._device = DeviceMeter(self._worker.samples, self._worker.phases)
        self._serial = 0
        # Reentrant: a user's signal handler may step during a step.
        self._counting = threading.RLock()
        self._executing = threading.Lock()
        self._threads = SteppingThreads(self._worker)
        self._complained = False
        self._pid = os.getpid()
        self._closed = not self._worker.linked
        self._checkpointer: Any = None
        if self._worker.linked:
            self._exception_hook = ExceptionHook(self._on_exception)
            atexit.register(self._close)
            self._log = TrainerLog(self._worker.log)
            self._log.start(self.knob)
            self._worker.start()

    @property
    def worker(self) -> str:
        """The worker's id."""
        return self._worker.identity.worker

    @property
    def group(self) -> str:
        """The replica group this worker belongs to."""
        return self._worker.identity.placement.group

    @property
    def state(self) -> WorkerState:
        """The worker's state: joining, training, paused ..."""
        return self._worker.state

    @property
    def inert(self) -> bool:
        """Whether this loom does nothing: there is no Weaver, and none is awaited."""
        return not self._worker.linked

    @property
    def is_over(self) -> bool:
        """Whether it was closed or drained, is inert, or lost its link to the Weaver for good."""
        return self.inert or self._closed or not self._worker.going

    @property
    def knobs(self) -> dict[str, Any]:
        """The knobs' values when last set or registered."""
        return self._worker.actuators.values

    def step(self, step: int | None = None, **metrics: Any) -> bool:
        """Report a finished step, run pending commands, and return whether to continue.

        Parameters
        ----------
        step : int, optional
            The number of the finished step; one more than the last if not given.
        **metrics
            Numbers or 0-d tensors, units in the name (``loss``, ``update_norm``). Tensors are
            read later, those on a GPU at a later step, so this never waits for the device.
            ``tokens``, ``samples`` and ``flops`` of this rank's step become rates and ``mfu``.

        Returns
        -------
        bool
            False once the worker has been drained: leave the loop.

        Raises
        ------
        SystemExit
            With status 0, in a loop that continues after the drain.
        """
        worker, on_device = self._worker, self._device.steps
        if on_device is not None:
            on_device.end_step()
        try:
            if self._vote is not None and worker.going:
                self._vote(step)
            if self._boundary is not None:
                step, own = self._boundary(step)
                metrics = {**own, **metrics}
            if self._checkpointer is not None:
                metrics = {**self._checkpointer.measurements(), **metrics}
        except Diverged:
            raise
        except Exception as error:  # noqa: BLE001 - the adapter's
            self._complain(error)
            self._ask(self.adapter.close)  # it may not vote as often as other ranks
        try:
            is_late = on_device is not None or self._device.not_there
            for value in metrics.values():
                if type(value) is not float:
                    is_late = True
            row = self._device.row(metrics, worker.linked) if is_late else metrics
            threads = self._threads
            if _thread() != threads.stepper:
                threads.look()
            if threads.stepper != SEVERAL:  # a lock would double the cost of a step
                self._count(step, row)
            else:
                with self._counting:
                    self._count(step, row)
            # While one thread runs commands the others continue: none waits for a lock.
            if worker.has_pending and self._executing.acquire(blocking=False):
                try:
                    worker.execute_pending()
                finally:
                    self._executing.release()
            if self._checkpointer is not None:
                self._checkpointer.at_boundary(worker.whole_step, is_last=not worker.going)
            if self._resume is not None:
                self._resume(worker.going)
            if self._device.steps is not None:
                self._device.steps.begin_step()
        except Exception as error:  # noqa: BLE001 - training continues
            self._complain(error)
        return worker.going or self._threads.dismiss()

    def _ask(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        """Call a method of the adapter; if it fails, training continues."""
        try:
            call(*arguments, **named)
        except Exception as error:  # noqa: BLE001 - the adapter's
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        if not self._complained:
            self._complained = True
            _logger.error("torchloom failed; training continues", exc_info=error)

    def _count(self, step: int | None, row: Mapping[str, Any]) -> None:
        worker = self._worker
        worker.step = worker.step + 1 if step is None else step
        self._serial += 1
        self._append((self._serial, _monotonic_ns(), row))

    def attach_again(self) -> None:
        """Let functions registered from now on replace those of the same name."""
        self._worker.actuators.attach_again()

    def begin(self) -> None:
        """Wait until this process may train."""
        self._ask(self.adapter.rejoin)

    def optimizer(self, *parts: Any, scheduler: Any = None) -> None:
        """Register the settings of optimizers as knobs: ``lr``, betas, weight decay.

        Parameter groups keep their ratios. Pass an optimizer's scheduler after it, or as
        ``scheduler``, to have it scaled with ``lr``; a scheduler that is not passed and computes
        the rate itself overwrites what was set. The names of several are as by :meth:`manage`.
        """
        for each in managed(parts if scheduler is None else (*parts, scheduler)):
            self.measure(each.optimizer)
            each.register(self, can_vote=self._worker.changes.can_vote)

    def manage(self, *parts: Any, scheduler: Any = None, **options: Any) -> None:
        """Attach to what trains: agree with the other ranks from now on, and register knobs.

        An optimizer's settings, the clipping and noise of its gradients and the choice of a
        ``SwitchableOptimizer`` become knobs, those of a second one as ``opt2.lr``.

        Parameters
        ----------
        *parts
            With torchft, its Manager first: each of its steps is voted on from now on, and a
            standby that has prepared waits in here until it may join, or exits with status 0. Then
            optimizers, also wrapped ones, each followed by its scheduler if it has one.
        scheduler : optional
            The last optimizer's, in place of its position.
        measure_update : bool
            Whether to measure ``update_norm`` as well, which takes a copy of the weights.
        process_group : optional
            Under torchrun, the ranks that agree, all by default. Call it on all of them, once
            ``torch.distributed`` is initialized; they use a gloo group of their own.

        Raises
        ------
        SystemExit
            With status 0, if the standby is dismissed.
        """
        self._ask(
            self.adapter.manage, *parts, *(() if scheduler is None else (scheduler,)), **options
        )

    def local_sgd(self, local_sgd: Any) -> None:
        """Register how often torchft's LocalSGD or DiLoCo synchronises, as run-fenced knobs."""
        Rounds(local_sgd).register(self)

    def state_dict(self) -> dict[str, Any]:
        """Return the step and the run-fenced knobs, for the script's own checkpoint."""
        return self.adapter.save()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint: on all ranks, with the knobs registered, before weights load.

        Exits if a knob cannot be set: this rank must not continue with a value of its own.
        """
        self.adapter.restore(state)

    def checkpoints(
        self, *parts: Any, path: str | os.PathLike[str], **options: "Unpack[CheckpointOptions]"
    ) -> "Checkpointer":
        """Save models, optimizers, schedulers and loaders from now on, and load the newest now.

        Call it on all ranks, after ``loom.manage``; begin at the step after ``checkpoints.step``.
        The options say where else and how often. CheckpointError if there are some and none loads.
        """
        from torchloom_threadlet.checkpoint.attached import attach_checkpoints

        self._checkpointer = found = attach_checkpoints(self, parts, path, **options)
        return found

    def close(self) -> None:
        """Announce that the worker leaves on purpose: its end, of any kind, is no failure."""
        if os.getpid() != self._pid:
            return
        self._ask(self.adapter.close)
        if self._checkpointer is not None:
            self._ask(self._checkpointer.close)
        if not self._closed:
            self._worker.enter("left")
            self._close()

    def close_for_next(self) -> None:
        """Close, and report the worker's end at once: another loom begins in this process."""
        self.close()
        self._worker.end_incarnation()

    def _on_exception(self, error: BaseException) -> None:
        if os.getpid() == self._pid:
            self._worker.send(Goodbye(error=error_line(error)))

    def _close(self) -> None:
        # A child forked by the trainer runs this at its exit too, but is not the worker.
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        atexit.unregister(self._close)
        self._log.stop()
        self._device.close()
        self._exception_hook.remove()
        self._worker.close()
