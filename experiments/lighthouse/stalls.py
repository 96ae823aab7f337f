"""How long the others stand still when a group freezes, leaves, dies, or dies in an allreduce."""

import random
import signal
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from experiments.lighthouse.groups import Arm, Run, Trainer, started

GROUPS = 3
FREEZE = "SIGSTOP"
LEAVE = "leave"
JOIN = "join"
STRIKES = {
    FREEZE: signal.SIGSTOP,
    LEAVE: signal.SIGUSR1,
    "kill -9": signal.SIGKILL,
    "kill -9 in an allreduce": signal.SIGUSR2,
}
THEIRS = Arm("torchft, 5000 ms", active=False)
OURS = Arm("torchLoom, 5000 ms", active=True)
ARMS = (
    THEIRS,
    Arm("torchft, 1000 ms", active=False, heartbeat_timeout_ms=1000),
    OURS,
    Arm("torchLoom, 5000 ms, Weaver", active=True, steered=True),
)
DETECTED_S = 0.5 + 3 * 0.1 + 0.1
"""The time to detect a hang by ``torchloom.toml``: the time without a step, two ticks in a row and
one more for the evidence, and a heartbeat."""
_USUAL_STEPS = 40
_STEPS_AFTER = 12
_A_HOLD_S = 2.2
"""A strike occurs at any time during the delay of a heartbeat's answer."""

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
    back_s : float
        How long a group that was frozen took to train with the others again, once it was let go.
    """

    arm: str
    strike: str
    stall_s: float
    failed: int
    back_s: float = 0.0


def play(folder: Path, arm: Arm, rng: random.Random, show: Callable[[str], None]) -> list[Stall]:
    """Strike one of three groups in each of the ways, one after the other."""
    found = []
    show(f"{arm.name}: starting")
    with started(folder, arm, GROUPS) as run:
        for strike, number in STRIKES.items():
            show(f"{arm.name}: {strike}")
            _let_pass(run, rng.uniform(0, _A_HOLD_S))
            victim = run.trainers[f"g{rng.randrange(GROUPS)}"]
            if strike == FREEZE:
                found += [_frozen(run, arm, victim)] if arm in (THEIRS, ARMS[-1]) else []
                continue
            found.append(_struck(run, arm, strike, victim, number))
            others, joins_s = run.alive, time.time()
            run.add(victim.group)
            run.all_train()
            found.append(_joined(arm, others, joins_s))
    return found


def _frozen(run: Run, arm: Arm, victim: Trainer) -> Stall:
    """Stop a group, wait until the others train without it, and let it go on."""
    survivors = [trainer for trainer in run.alive if trainer is not victim]
    at_s = victim.strike(signal.SIGSTOP)
    run.all_train(at_s, _STEPS_AFTER, _RECOVERY_S, survivors)
    stall = _stall(arm, FREEZE, survivors, at_s)
    let_go_s = victim.strike(signal.SIGCONT)
    run.all_train(let_go_s)
    return replace(stall, back_s=time.time() - let_go_s)


def _let_pass(run: Run, seconds: float) -> None:
    """Continue until every group has taken some steps, and a moment more."""
    one = run.alive[0]
    first_s = one.rows[-1]["t"]
    run.all_train(first_s, _USUAL_STEPS)
    run.all_train(one.rows[-1]["t"] + seconds)


def _struck(run: Run, arm: Arm, strike: str, victim: Trainer, number: signal.Signals) -> Stall:
    survivors = [trainer for trainer in run.alive if trainer is not victim]
    at_s = time.time()
    if strike == LEAVE and arm.steered:
        run.drain(victim.group)
    else:
        victim.strike(number)
    victim.process.wait()
    run.all_train(at_s, _STEPS_AFTER, _RECOVERY_S)
    return _stall(arm, strike, survivors, at_s)


def _stall(arm: Arm, strike: str, survivors: list[Trainer], at_s: float) -> Stall:
    return Stall(
        arm=arm.name,
        strike=strike,
        stall_s=max(stall_s(trainer, at_s) for trainer in survivors),
        failed=max(
            sum(not row["committed"] for row in trainer.rows if row["t"] > at_s)
            for trainer in survivors
        ),
    )


def _joined(arm: Arm, others: list[Trainer], at_s: float) -> Stall:
    """Return what the first step with the joiner cost: its start takes the others' cores."""
    found = [join_of([row for row in t.rows if row["t"] > at_s], GROUPS) for t in others]
    return Stall(
        arm=arm.name, strike=JOIN, stall_s=max(s for s, _ in found), failed=max(f for _, f in found)
    )


def join_of(rows: Sequence[Mapping[str, Any]], groups: int) -> tuple[float, int]:
    """Return the stall of the first step among so many, and the steps that failed before it."""
    first = next(n for n, row in enumerate(rows) if row["participants"] == groups)
    usual_s = statistics.median(b["t"] - a["t"] for a, b in pairwise(rows[:first]))
    failed = sum(not row["committed"] for row in rows[: first + 1])
    return rows[first]["t"] - rows[first - 1]["t"] - usual_s, failed


def stall_s(trainer: Trainer, at_s: float) -> float:
    """Return the longest time between two steps from ``at_s`` on, less the usual time."""
    ends = [row["t"] for row in trainer.rows]
    before = [end for end in ends if end <= at_s][-_USUAL_STEPS:]
    after = before[-1:] + [end for end in ends if end > at_s]
    usual_s = statistics.median(b - a for a, b in pairwise(before))
    return max(b - a for a, b in pairwise(after)) - usual_s
