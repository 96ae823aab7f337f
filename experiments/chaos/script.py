"""The strikes and requests of a run with their times, determined by the seed."""

import itertools
import random
from dataclasses import dataclass

KILLS = {"weaver": 0.25, "broker": 0.2, "sidecar": 0.4, "trainer": 0.15}
FREEZES = {"weaver": 0.3, "broker": 0.25, "sidecar": 0.3, "trainer": 0.15}
CLUSTER_KILLS = {
    "weaver": 0.25,
    "broker": 0.2,
    "sidecar": 0.25,
    "trainer": 0.13,
    "lighthouse": 0.07,
    "host": 0.1,
}
CLUSTER_FREEZES = {
    "weaver": 0.3,
    "broker": 0.25,
    "sidecar": 0.2,
    "trainer": 0.1,
    "lighthouse": 0.05,
    "host": 0.1,
}
"""With standbys the lighthouse can be struck, too; and a host, which is all of its processes."""
FREEZES_PER_KILL = 1 / 3
SHORTEST_FREEZE_S, LONGEST_FREEZE_S = 0.2, 8.0
STRIKE_EVERY_S = 1.5
CLUSTER_STRIKE_EVERY_S = 2.0
WITH_REQUEST = 0.5
LATEST_S = 0.2
ASK_EVERY_S = 0.8
OVERTIME_S = 120.0
"""How late strikes may be: their target may have to restart first."""

REQUESTS = {
    "knob": 8,
    "checkpoint": 5,
    "pause": 2,
    "migrate": 3,
    "drain": 1,
    "cordon": 2,
    "stop": 2,
}


@dataclass(frozen=True)
class Strike:
    """One process is killed, or frozen for ``lasts_s``; ``pick`` in [0, 1) chooses among equals.

    Half of the strikes wait for the next request from ``at_s`` on and follow it by
    ``after_request_s``, while its commands travel; for the others that is None.
    """

    at_s: float
    target: str
    kind: str
    pick: float
    lasts_s: float
    after_request_s: float | None


@dataclass(frozen=True)
class Request:
    """A request, sent ``gap_s`` after the last one was carried out.

    A pause, a stop or a cordon is undone after ``lasts_s``. ``value`` is unique, so that a
    trainer's journal identifies the request.
    """

    gap_s: float
    kind: str
    pick: float
    value: int
    lasts_s: float
    to_one: bool


@dataclass(frozen=True)
class Script:
    """All strikes and requests of a run."""

    strikes: tuple[Strike, ...]
    requests: tuple[Request, ...]
    last_s: float
    """Strikes that are later than this are omitted."""


def write(seed: int, kills: int, *, with_standbys: bool = False) -> Script:
    """Return this many kills, a third as many freezes, and requests throughout."""
    own = (STRIKE_EVERY_S, KILLS, FREEZES)
    if with_standbys:
        own = (CLUSTER_STRIKE_EVERY_S, CLUSTER_KILLS, CLUSTER_FREEZES)
    strikes = _strikes(random.Random(f"{seed} strikes"), kills, *own)
    overtime_s = 60.0 + 2.0 * len(strikes) if with_standbys else OVERTIME_S
    last_s = strikes[-1].at_s + overtime_s
    return Script(strikes, _requests(random.Random(f"{seed} wishes"), last_s), last_s)


def _strikes(
    rng: random.Random,
    kills: int,
    every_s: float,
    of_kills: dict[str, float],
    of_freezes: dict[str, float],
) -> tuple[Strike, ...]:
    kinds = ["kill"] * kills + ["freeze"] * round(kills * FREEZES_PER_KILL)
    rng.shuffle(kinds)
    due = itertools.accumulate(rng.expovariate(1 / every_s) for _ in kinds)
    return tuple(
        Strike(
            at_s=at_s,
            target=_draw(rng, of_kills if kind == "kill" else of_freezes),
            kind=kind,
            pick=rng.random(),
            lasts_s=0.0 if kind == "kill" else rng.uniform(SHORTEST_FREEZE_S, LONGEST_FREEZE_S),
            after_request_s=rng.uniform(0, LATEST_S) if rng.random() < WITH_REQUEST else None,
        )
        for at_s, kind in zip(due, kinds, strict=True)
    )


def _requests(rng: random.Random, until_s: float) -> tuple[Request, ...]:
    requests: list[Request] = []
    while sum(request.gap_s for request in requests) < until_s:
        requests.append(
            Request(
                gap_s=rng.expovariate(1 / ASK_EVERY_S),
                kind=_draw(rng, REQUESTS),
                pick=rng.random(),
                value=len(requests) + 1,
                lasts_s=rng.uniform(0.3, 2.0),
                to_one=rng.random() < 0.3,
            )
        )
    return tuple(requests)


def _draw(rng: random.Random, weights: dict[str, float]) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]
