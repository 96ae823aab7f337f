"""How long the others stand still when a group leaves, dies, or dies in an allreduce."""

import random
import signal
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from experiments.lighthouse.groups import Arm, Run, Trainer, started

GROUPS = 3
STRIKES = {
    "leave": signal.SIGUSR1,
    "kill -9": signal.SIGKILL,
    "kill -9 in an allreduce": signal.SIGUSR2,
}
THEIRS = Arm("torchft, 5000 ms", active=False)
OURS = Arm("torchLoom, 5000 ms", active=True)
ARMS = (
    THEIRS,
    Arm("torchft, 1000 ms", active=False, heartbeat_timeout_ms=1000),
    OURS,
    Arm("torchLoom, 5000 ms, Threadlet", active=True, threadlet=True),
)
_USUAL_STEPS = 40
_STEPS_AFTER = 12
_A_HOLD_S = 2.2
"""A strike falls anywhere in the time for which a heartbeat's answer is kept back."""

_RECOVERY_S = 60.0


@dataclass(frozen=True)
class Stall:
    """What one strike did to those it did not hit.

    Attributes
    ----------
    stall_s : float
        The longest time between two steps of a survivor, less the usual time.
    failed : int
        Steps that a survivor could not commit, of the one that had most.
    """

    arm: str
    strike: str
    stall_s: float
    failed: int


def play(folder: Path, arm: Arm, rng: random.Random, tell: Callable[[str], None]) -> list[Stall]:
    """Strike one of three groups in each of the ways, one after the other."""
    found = []
    tell(f"{arm.name}: starting")
    with started(folder, arm, GROUPS) as run:
        for strike, number in STRIKES.items():
            tell(f"{arm.name}: {strike}")
            _let_pass(run, rng.uniform(0, _A_HOLD_S))
            victim = run.trainers[f"g{rng.randrange(GROUPS)}"]
            found.append(_struck(run, arm, strike, victim, number))
            run.add(victim.group)
            run.all_train()
    return found


def _let_pass(run: Run, seconds: float) -> None:
    """Go on until everybody has taken some steps, and a moment more."""
    one = run.alive[0]
    first_s = one.rows[-1]["t"]
    run.all_train(first_s, _USUAL_STEPS)
    run.all_train(one.rows[-1]["t"] + seconds)


def _struck(run: Run, arm: Arm, strike: str, victim: Trainer, number: signal.Signals) -> Stall:
    survivors = [trainer for trainer in run.alive if trainer is not victim]
    at_s = victim.strike(number)
    victim.process.wait()
    run.all_train(at_s, _STEPS_AFTER, _RECOVERY_S)
    return Stall(
        arm=arm.name,
        strike=strike,
        stall_s=max(stall_s(trainer, at_s) for trainer in survivors),
        failed=max(
            sum(not row["committed"] for row in trainer.rows if row["t"] > at_s)
            for trainer in survivors
        ),
    )


def stall_s(trainer: Trainer, at_s: float) -> float:
    """Return the longest time between two steps from ``at_s`` on, less the usual time."""
    ends = [row["t"] for row in trainer.rows]
    before = [end for end in ends if end <= at_s][-_USUAL_STEPS:]
    after = before[-1:] + [end for end in ends if end > at_s]
    usual_s = statistics.median(b - a for a, b in pairwise(before))
    return max(b - a for a, b in pairwise(after)) - usual_s
