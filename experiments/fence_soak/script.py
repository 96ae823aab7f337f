"""Which knobs are changed and what is struck, and when: the same for the same seed."""

import random
from dataclasses import dataclass
from typing import Any, Literal

GAP_S = 0.5
"""Between two changes, in the mean."""

STRIKES = {
    ("kill", "trainer"): 0.10,
    ("freeze", "trainer"): 0.08,
    ("kill", "sidecar"): 0.10,
    ("freeze", "sidecar"): 0.05,
    ("kill", "weaver"): 0.06,
    ("freeze", "weaver"): 0.03,
    ("kill", "broker"): 0.06,
}
"""How likely each is to fall around a change."""

EARLIEST_S, LATEST_S = -0.3, 0.6
SHORTEST_FREEZE_S, LONGEST_FREEZE_S = 0.2, 8.0


@dataclass(frozen=True)
class Knob:
    """One knob that must not differ; ``mark``: no two changes give it the same value.

    ``start`` is None where the trainer has a value of its own.
    """

    name: str
    kind: Literal["float", "int", "choice"]
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    start: Any = None
    mark: bool = False

    def draw(self, rng: random.Random, number: int) -> Any:
        """Return the value that change ``number`` gives it."""
        if self.kind == "choice":
            return rng.choice(self.choices)
        if self.kind == "int":
            return 16 + number
        return round(0.02 + 1e-5 * number, 5)


# A further knob that shapes a step is one more line here and its use in trainer.py.
KNOBS = (
    Knob("lr", "float", low=0.0, high=1.0, mark=True),
    Knob("width", "int", low=1, high=100_000, start=16, mark=True),
    Knob("wire", "choice", choices=("fp32", "fp64", "bf16"), start="fp32"),
)


@dataclass(frozen=True)
class Strike:
    """One process is killed, or frozen for ``lasts_s``, so long after a change is asked for.

    ``pick`` in [0, 1) chooses among equals.
    """

    kind: str
    target: str
    after_s: float
    lasts_s: float
    pick: float


@dataclass(frozen=True)
class Change:
    """What is asked for ``gap_s`` after the last change was granted."""

    number: int
    gap_s: float
    values: dict[str, Any]
    strikes: tuple[Strike, ...]


def write(seed: int, changes: int) -> list[Change]:
    """Return so many changes, of one knob or of several, and what is struck around them."""
    rng = random.Random(seed)
    return [_change(rng, number) for number in range(1, changes + 1)]


def _change(rng: random.Random, number: int) -> Change:
    marks = [knob for knob in KNOBS if knob.mark]
    chosen = {rng.choice(marks).name}
    if rng.random() < 0.5:
        chosen |= {knob.name for knob in KNOBS if rng.random() < 0.5}
    return Change(
        number=number,
        gap_s=rng.expovariate(1 / GAP_S),
        values={knob.name: knob.draw(rng, number) for knob in KNOBS if knob.name in chosen},
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
