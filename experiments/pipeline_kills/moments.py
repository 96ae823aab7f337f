"""Ends this process by SIGKILL at a chosen moment of a step, or of a new generation."""

import os
import random
import signal
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from torchloom_threadlet.pipeline import (
    copying,
    generation,
    group,
    messages,
    reduction,
    routes,
    worker,
)

IN_A_STEP = ("compute", "send", "reduction", "vote", "commit")
IN_A_GENERATION = ("form", "copy")
PLACES: dict[str, tuple[tuple[Any, str], ...]] = {
    "compute": ((routes._Layers, "forward"), (routes._Stage, "backward_one_chunk")),
    "send": ((messages.Messages, "send"),),
    "reduction": ((reduction._Sum, "send_slices"), (reduction._Sum, "receive_sums")),
    "vote": ((worker, "vote"), (generation.Generation, "share")),
    "commit": ((worker.Worker, "_commit"),),
    "form": ((group.Group, "form"),),
    "copy": ((copying, "to_bytes"), (copying, "load_bytes")),
}


class Moment(msgspec.Struct, frozen=True):
    """Before, ``after_s`` within, or after the ``call``-th call in a phase from now on."""

    phase: str
    call: int
    when: str
    after_s: float = 0.0


NEVER = Moment("", 0, "")


def drawn(phase: str, rng: random.Random) -> Moment:
    """Return a random moment of a phase."""
    calls = {"compute": 16, "send": 8, "reduction": 2, "vote": 2}.get(phase, 1)
    when = rng.choice(("before", "within", "after"))
    return Moment(phase, rng.randrange(calls), when, rng.uniform(0, 0.003))


class Trigger:
    """Waits in all places of the phases; ``dying`` is called with the phase just before."""

    def __init__(self, dying: Callable[[str], None]) -> None:
        self._dying = dying
        self._armed: Moment | None = None
        self._calls = 0
        self._phase = threading.local()
        for phase, places in PLACES.items():
            for owner, name in places:
                setattr(owner, name, self._wrapped(phase, getattr(owner, name)))

    def arm(self, moment: Moment) -> None:
        """End this process at that moment."""
        self._calls, self._armed = 0, moment

    def _wrapped(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            armed = self._armed
            if armed is None or armed.phase != phase:
                return function(*args, **kwargs)
            is_now, self._calls = self._calls == armed.call, self._calls + 1
            if is_now and armed.when == "before":
                self._die(phase)
            if is_now and armed.when == "within":
                threading.Timer(armed.after_s, self._die, [phase]).start()
            try:
                return function(*args, **kwargs)
            finally:  # also if another death has ended the call
                if is_now and armed.when == "after":
                    self._die(phase)

        return called

    def _die(self, phase: str) -> None:
        self._dying(phase)
        os.kill(os.getpid(), signal.SIGKILL)
