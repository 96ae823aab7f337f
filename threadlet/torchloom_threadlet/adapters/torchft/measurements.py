"""What is measured on torchft's Manager: waits, rounds and the state that it gives; wraps it."""

import logging
import time
from collections.abc import Callable
from typing import Any

from torch.utils._pytree import tree_leaves

from torchloom_core.wire.start_phases import STATE_TRANSFER
from torchloom_threadlet.compression import CompressedProcessGroup
from torchloom_threadlet.trainer.phases import Waits
from torchloom_threadlet.trainer.start_marks import StartMarks

_logger = logging.getLogger(__name__)


def stamp_waits(manager: Any, phases: Waits, of_reductions: Waits) -> None:
    """Record the time that ``manager`` waits for others.

    ``of_reductions`` records the waits for an allreduce, ``phases`` all others.

    On a GPU, ``wait`` of a collective and the launch of a kernel return at once, and the host
    waits for both in ``should_commit``; the two waits are separated by events on the device
    (:mod:`torchloom_threadlet.device`).
    """
    for name, what in (
        ("start_quorum", "quorum"),
        ("wait_quorum", "quorum"),
        ("should_commit", "commit"),
    ):
        setattr(manager, name, _stamped(getattr(manager, name), what, phases))
    allreduce, stamped = manager.allreduce, dict[Any, Any]()

    def stamped_allreduce(*args: Any, **kwargs: Any) -> Any:
        work = allreduce(*args, **kwargs)
        kind = type(work)
        if kind not in stamped:
            stamped[kind] = _stamped_work(kind, of_reductions)
        work.__class__ = stamped[kind]
        return work

    manager.allreduce = stamped_allreduce


def hook(
    manager: Any,
    name: str,
    *,
    before: Callable[[], None] | None = None,
    after: Callable[[], None] | None = None,
) -> None:
    """Have functions called before and after each call of a method of ``manager``."""
    method = getattr(manager, name)

    def hooked(*args: Any, **kwargs: Any) -> Any:
        _call(before, name)
        try:
            return method(*args, **kwargs)
        finally:
            _call(after, name)

    setattr(manager, name, hooked)


def mark_transfer(manager: Any, starting: StartMarks) -> None:
    """Mark the time in which ``manager`` copies and loads a peer's state, in whichever thread."""
    hook(
        manager._checkpoint_transport,
        "recv_checkpoint",
        before=lambda: starting.transfer(True),
        after=lambda: starting.transfer(False),
    )
    hook(
        manager,
        "_apply_pending_state_dict",
        before=lambda: starting.begin(STATE_TRANSFER),
        after=lambda: starting.end(STATE_TRANSFER),
    )


def _call(function: Callable[[], None] | None, name: str) -> None:
    try:
        if function is not None:
            function()
    except Exception:
        _logger.exception("torchloom failed at %s; training continues", name)


def _stamped(method: Callable[..., Any], what: str, waits: Waits) -> Callable[..., Any]:
    def stamped(*args: Any, **kwargs: Any) -> Any:
        waits.begin(what)
        try:
            return method(*args, **kwargs)
        finally:
            waits.end(what)

    return stamped


def _stamped_work(kind: Any, waits: Waits) -> Any:
    """Return a class of work whose ``wait`` is recorded.

    Not a function in the work's own ``__dict__``: it would keep the work and its tensors until the
    next garbage collection, or not long enough in ``manager.allreduce(x).wait()``.
    """
    return type(kind.__name__, (kind,), {"wait": _stamped(kind.wait, "allreduce", waits)})


class RoundFigures:
    """Sums up costs between two decisions of the Manager: over a step of DDP, or a round.

    Only the step of the decision reports them, so the newest figures of the allreduce are those of
    the last sync, however many steps without a reduction follow.
    """

    def __init__(self, pg: CompressedProcessGroup) -> None:
        self._pg = pg
        self._decided = False
        self._has_rounds = False
        self._since = time.perf_counter()
        self._steps, self._whole_s, self._wait_s = 0, 0.0, 0.0

    def begin_step(self) -> None:
        """Start the clock: a pause, for instance, is over."""
        self._since = time.perf_counter()

    def decide(self) -> None:
        """Record that the Manager has decided on a reduction."""
        self._decided = True

    def end_step(self, wait_s: float) -> dict[str, float]:
        """Return the step's metrics, given its wait for others."""
        self._steps += 1
        self._whole_s += time.perf_counter() - self._since
        self._wait_s += wait_s
        if not self._decided:
            return {}
        metrics = self._pg.take_figures().metrics()
        self._has_rounds |= self._steps > 1
        if self._has_rounds:
            metrics["round_steps"] = self._steps
            metrics["round_s"], metrics["round_wait_s"] = self._whole_s, self._wait_s
        self._decided = False
        self._steps, self._whole_s, self._wait_s = 0, 0.0, 0.0
        return metrics


class GivenState:
    """The size of the state that ``manager`` gave last.

    ``size_bytes``: of its tensors on this rank; 0 before any state was given.
    """

    def __init__(self, manager: Any) -> None:
        self.size_bytes = 0
        transport = manager._checkpoint_transport
        send = transport.send_checkpoint

        def measured_send(*args: Any, **kwargs: Any) -> Any:
            try:
                leaves = tree_leaves(kwargs["state_dict"])
                parts = (getattr(leaf, "_local_tensor", leaf) for leaf in leaves)  # of DTensors
                self.size_bytes = sum(getattr(part, "nbytes", 0) for part in parts)
            except Exception:
                _logger.exception("cannot measure the size of the given state")
            return send(*args, **kwargs)

        transport.send_checkpoint = measured_send
