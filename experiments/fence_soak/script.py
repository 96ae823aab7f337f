"""The changes and strikes of a run with their times, determined by the seed."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torchloom_threadlet.compression import MODES

Algorithm = Literal["ddp", "local_sgd", "diloco", "tuned"]

GAPS_S: Mapping[Algorithm, float] = {"ddp": 0.5, "local_sgd": 0.5, "diloco": 0.5, "tuned": 8.0}
"""Mean time between two changes; for ``tuned`` between two possible strikes."""

RATES = (None, 2e6, 2e5, 1e6, 5e4)
"""Limits of the bytes per second that each rank of ``tuned`` sends, one after the other."""
STEPS_A_RATE = 60

STRIKES = {
    ("kill", "trainer"): 0.10,
    ("freeze", "trainer"): 0.08,
    ("kill", "sidecar"): 0.10,
    ("freeze", "sidecar"): 0.05,
    ("kill", "weaver"): 0.06,
    ("freeze", "weaver"): 0.03,
    ("kill", "broker"): 0.06,
}
"""Probability of each around a change."""

EARLIEST_S, LATEST_S = -0.3, 0.6
SHORTEST_FREEZE_S, LONGEST_FREEZE_S = 0.2, 8.0

OPTIMIZERS = ("adamw", "sgd", "muon")
WIRES = ("fp32", "fp64", "bf16")

PARTS: Mapping[str, int] = {"local_sgd": 1, "diloco": 2}
"""Number of fragments that are synchronised in turn."""

SHORTEST_ROUND, LONGEST_DELAY = 8, 3
"""Every delay is valid with every round; the run begins with the shortest round."""

UNFIT = 0.1
"""Probability that a change of rounds is invalid."""


@dataclass(frozen=True)
class Knob:
    """One knob that must not differ; ``mark``: no two changes give it the same value."""

    name: str
    choices: tuple[Any, ...] = ()
    mark: bool = False

    def draw(self, rng: random.Random, number: int, turn: int) -> Any:
        """Return the value that change ``number`` gives it.

        ``turn`` is its position in an order that rises and falls.
        """
        match self.name:
            case "lr":
                return round(1e-3 + 1e-6 * number, 6)
            case "width":
                return 16 + number
            case "sync_every":
                return SHORTEST_ROUND + 2 + 2 * turn
        return rng.choice(self.choices)


# To add a knob that shapes a step, add a line here and its use in trainer.py.
LR = Knob("lr", mark=True)
SYNC_EVERY = Knob("sync_every", mark=True)
DELAY = Knob("fragment_sync_delay", choices=tuple(range(LONGEST_DELAY + 1)))
KNOBS: dict[Algorithm, tuple[Knob, ...]] = {
    "ddp": (
        LR,
        Knob("width", mark=True),
        Knob("wire", WIRES),
        Knob("compression", MODES),
        Knob("optimizer", OPTIMIZERS),
    ),
    "local_sgd": (LR, SYNC_EVERY),
    "diloco": (LR, SYNC_EVERY, DELAY),
    "tuned": (),
}
"""The knobs that the client changes. In ``tuned`` the policy ``allreduce_tuner`` changes knobs."""

UNFIT_VALUES: dict[Algorithm, tuple[dict[str, Any], ...]] = {
    "ddp": (),
    "local_sgd": ({"sync_every": 0},),
    "diloco": (
        {"sync_every": 9},
        {"fragment_sync_delay": 1000},
        {"sync_every": 4, "fragment_sync_delay": 3},
        {"lr": 0.5, "sync_every": 11},
    ),
    "tuned": (),
}


def fits(values: Mapping[str, Any], algorithm: Algorithm) -> bool:
    """Return whether torchft can form rounds with these values."""
    if algorithm not in PARTS:
        return True
    every, parts = values.get("sync_every", SHORTEST_ROUND), PARTS[algorithm]
    return every > 0 and not every % parts and every // parts > values.get(DELAY.name, 0)


@dataclass(frozen=True)
class Strike:
    """One process is killed, or frozen for ``lasts_s``, ``after_s`` after a change is requested.

    ``pick`` in [0, 1) chooses among equals.
    """

    kind: str
    target: str
    after_s: float
    lasts_s: float
    pick: float


@dataclass(frozen=True)
class Change:
    """A change, requested ``gap_s`` after the last was granted; without values: only strikes."""

    number: int
    gap_s: float
    values: dict[str, Any]
    strikes: tuple[Strike, ...]


def write(seed: int, changes: int, algorithm: Algorithm = "ddp") -> list[Change]:
    """Return so many changes, of one knob or of several, and what is struck around them."""
    rng = random.Random(seed)
    turns = rng.sample(range(changes), changes)
    return [_change(rng, number, turn, algorithm) for number, turn in enumerate(turns, 1)]


def _change(rng: random.Random, number: int, turn: int, algorithm: Algorithm) -> Change:
    return Change(
        number=number,
        gap_s=rng.expovariate(1 / GAPS_S[algorithm]),
        values=_values(rng, number, turn, algorithm),
        strikes=tuple(
            Strike(
                kind=kind,
                target=target,
                after_s=rng.uniform(EARLIEST_S, LATEST_S),
                lasts_s=rng.uniform(SHORTEST_FREEZE_S, LONGEST_FREEZE_S) if kind == "freeze" else 0,
                pick=rng.random(),
            )
            for (kind, target), likely in STRIKES.items()
            if rng.random() < likely
        ),
    )


def _values(rng: random.Random, number: int, turn: int, algorithm: Algorithm) -> dict[str, Any]:
    if UNFIT_VALUES[algorithm] and rng.random() < UNFIT:
        return rng.choice(UNFIT_VALUES[algorithm])
    knobs = KNOBS[algorithm]
    if not knobs:
        return {}
    chosen = {rng.choice([knob.name for knob in knobs if knob.mark])}
    if rng.random() < 0.5:
        chosen |= {knob.name for knob in knobs if rng.random() < 0.5}
    return {knob.name: knob.draw(rng, number, turn) for knob in knobs if knob.name in chosen}
