"""The lighthouse is killed and started again: at rest, while a group joins, while one dies."""

import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from experiments.lighthouse.groups import Arm, NotReadyError, Run, Trainer, started
from experiments.lighthouse.stalls import stall_s

GROUPS = 3
SCENES = ("at rest", "while a group joins", "while a group dies", "as it answers")
LONGEST_DOWN_S = 0.6
_RECOVERY_S = 60.0
_JOINS_WITHIN_S = (1.5, 4.5)
_STEPS_AFTER = 8


@dataclass(frozen=True)
class Restart:
    """What one kill of the lighthouse did.

    Attributes
    ----------
    failed : int
        Steps that a group could not commit, of the one that had most.
    short : int
        Steps in which a group trained with fewer than were alive.
    stall_s : float
        The longest time between two steps, less the usual time.
    stood_still : bool
        Whether not all trained again within a minute.
    """

    scene: str
    failed: int
    short: int
    stall_s: float
    stood_still: bool = False


@dataclass(frozen=True)
class Result:
    """All kills of one arm, and what is seen only over the whole run.

    Attributes
    ----------
    ids_back : int
        Times that a group received a lower quorum id than before.
    unequal : int
        Steps after which the weights of two groups were not bitwise equal.
    compared : int
        Steps of which the weights of two groups at least are known.
    """

    arm: str
    restarts: tuple[Restart, ...]
    ids_back: int
    unequal: int
    compared: int


def play(
    folder: Path, arm: Arm, kills: int, rng: random.Random, show: Callable[[str], None]
) -> Result:
    """Kill the lighthouse ``kills`` times, in one scene after the other."""
    restarts: list[Restart] = []
    show(f"{arm.name}: starting")
    with started(folder, arm, GROUPS) as run:
        scenes = SCENES if arm.active else SCENES[:-1]  # torchft's cannot die at a set time
        for number in range(kills):
            scene = scenes[number % len(scenes)]
            show(f"{arm.name}: killed {scene}")
            try:
                run.all_train(time.time(), 2 * _STEPS_AFTER)
                time.sleep(rng.uniform(0, 1))
                restarts.append(_SCENES[scene](run, rng))
            except NotReadyError:
                restarts.append(Restart(scene, 0, 0, _RECOVERY_S, stood_still=True))
                break
        incarnations = run.incarnations
    unequal, compared = weights(incarnations)
    return Result(arm.name, tuple(restarts), ids_back(incarnations), unequal, compared)


def take_over(folder: Path, arm: Arm) -> float:
    """Kill a lighthouse for which another stands by, and return how long training stood still."""
    with started(folder, arm, GROUPS) as run:
        run.all_train(time.time(), 2 * _STEPS_AFTER)
        first = run.lighthouse.process
        run.lighthouse.process = run.lighthouse.stand_by()
        at_s = time.time()
        assert first is not None
        first.kill()
        first.wait()
        run.all_train(at_s, _STEPS_AFTER, _RECOVERY_S)
        return max(stall_s(trainer, at_s) for trainer in run.alive)


def _at_rest(run: Run, rng: random.Random) -> Restart:
    return _counted("at rest", run, run.alive, _restart(run, rng))


def _answering(run: Run, rng: random.Random) -> Restart:
    at_s = time.time()
    run.lighthouse.kill_as_it_answers()
    time.sleep(rng.uniform(0, LONGEST_DOWN_S))
    run.lighthouse.start()
    return _counted("as it answers", run, run.alive, at_s)


def _joining(run: Run, rng: random.Random) -> Restart:
    old = run.alive
    joiner = run.add(f"g{GROUPS}")
    time.sleep(rng.uniform(*_JOINS_WITHIN_S))
    counted = _counted("while a group joins", run, old, _restart(run, rng))
    joiner.strike(signal.SIGUSR1)
    joiner.process.wait()
    return counted


def _dying(run: Run, rng: random.Random) -> Restart:
    victim = run.trainers[f"g{rng.randrange(GROUPS)}"]
    survivors = [trainer for trainer in run.alive if trainer is not victim]
    before = rng.random() < 0.5
    dead_s = victim.strike(signal.SIGKILL) if before else 0.0
    time.sleep(rng.uniform(0, LONGEST_DOWN_S))
    at_s = _restart(run, rng, victim=None if before else victim)
    dead_s = dead_s or at_s
    victim.process.wait()
    run.all_train(at_s, _STEPS_AFTER, _RECOVERY_S)
    first_s = min(at_s, dead_s)
    counted = _counted("while a group dies", run, survivors, first_s, GROUPS - 1)
    run.add(victim.group)
    run.all_train()
    return counted


_SCENES: dict[str, Callable[[Run, random.Random], Restart]] = dict(
    zip(SCENES, (_at_rest, _joining, _dying, _answering), strict=True)
)


def _restart(run: Run, rng: random.Random, victim: Trainer | None = None) -> float:
    """Kill the lighthouse and start it again; ``victim`` dies while there is none."""
    at_s = time.time()
    run.lighthouse.kill()
    down_s = rng.uniform(0, LONGEST_DOWN_S)
    if victim is not None:
        time.sleep(down_s / 2)
        victim.strike(signal.SIGKILL)
        down_s /= 2
    time.sleep(down_s)
    run.lighthouse.start()
    return at_s


def _counted(
    scene: str, run: Run, trainers: Iterable[Trainer], at_s: float, alive: int = GROUPS
) -> Restart:
    """Wait until all train again, and return what these had to suffer since ``at_s``."""
    run.all_train(at_s, _STEPS_AFTER, _RECOVERY_S)
    rows = [(trainer, [r for r in trainer.rows if r["t"] > at_s]) for trainer in trainers]
    return Restart(
        scene=scene,
        failed=max(sum(not row["committed"] for row in of) for _, of in rows),
        short=sum(row["participants"] < alive for _, of in rows for row in of),
        stall_s=max(stall_s(trainer, at_s) for trainer, _ in rows),
    )


def ids_back(incarnations: Iterable[Trainer]) -> int:
    """Return how often a group was given a lower id than before."""
    ids = [[row["quorum_id"] for row in trainer.journal("quorum_id")] for trainer in incarnations]
    return sum(later < sooner for of in ids for sooner, later in pairwise(of))


def weights(incarnations: Iterable[Trainer]) -> tuple[int, int]:
    """Return at how many steps weights differed, and at how many there were two to compare."""
    seen: dict[int, list[str]] = defaultdict(list)
    for trainer in incarnations:
        for row in trainer.journal("weights"):
            seen[row["step"]].append(row["weights"])
    compared = {step: digests for step, digests in seen.items() if len(digests) > 1}
    return sum(len(set(digests)) > 1 for digests in compared.values()), len(compared)
