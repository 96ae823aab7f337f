"""Monte Carlo of the formulas' processes, on the fleet model itself.

The tests compare it with :mod:`experiments.formulas.formulas` in seconds, and
``experiments/formulas`` for longer. Every function plays one run and returns its result.
"""

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from torchloom_core.lab.simulate.event_queue import to_ns
from torchloom_core.lab.simulate.model import FleetModel
from torchloom_core.lab.simulate.records import Result
from torchloom_core.lab.simulate.scenario import Hit, JobSpec, Tier
from torchloom_core.lab.trace import Follows

NO_TIER = Tier(save_s=0.0, restart_s=0.0, interval_s=math.inf)

_BLOCK = 1024
LEAD_S = 1.0
"""How long before a predicted failure the answer to it is complete."""


def plain_job(
    *,
    groups: int = 1,
    standbys: int = 0,
    spares: int = 0,
    recovery: str = "restart",
    step_s: float = 10.0,
    durable: Tier = NO_TIER,
    local: Tier | None = None,
    **costs: float,
) -> JobSpec:
    """Return a job of groups of one node, in which all that is not given costs nothing."""
    names = ("proactive_save", "detect", "migrate", "rejoin", "provision", "warm_up", "inspect")
    every = {f"{name}_s": 0.0 for name in names}
    return JobSpec(
        groups=groups,
        nodes_per_group=1,
        gpus_per_node=8,
        standbys=standbys,
        spares=spares,
        recovery="per_step" if recovery == "per_step" else "restart",
        step_s=step_s,
        durable=durable,
        local=local,
        **{**every, **costs},
    )


def fleet(job: JobSpec, hits: Iterable[Hit], wall_s: float) -> FleetModel:
    """Return the model of a job on nodes ``n0``, ``n1``, ..., from time 0 on."""
    return FleetModel(job, names(job), hits, start_ns=0, end_ns=to_ns(wall_s))


def names(job: JobSpec) -> list[str]:
    """Return the nodes of :func:`fleet`."""
    return [f"n{index}" for index in range(job.nodes)]


def poisson_hits(
    rng: np.random.Generator, mtbf_s: float, *, nodes: Sequence[str] = (), name: str = "poisson"
) -> Iterator[Hit]:
    """Yield hits without end, with exponential gaps of mean ``mtbf_s``.

    Each strikes one of ``nodes``, all alike, which is repaired at once. Without ``nodes`` each is a
    fault of the job itself.
    """
    ts_s, numbers = 0.0, itertools.count(1)
    while True:
        gaps = rng.exponential(mtbf_s, _BLOCK).tolist()
        places = rng.integers(max(1, len(nodes)), size=_BLOCK).tolist()
        for gap, place in zip(gaps, places, strict=True):
            ts_s += gap
            struck = (nodes[place],) if nodes else ()
            yield _hit(f"{name}-{next(numbers)}", ts_s, struck)


def periodic_hits(every_s: float) -> Iterator[Hit]:
    """Yield a fault of the job every ``every_s``, without end."""
    for number in itertools.count(1):
        yield _hit(f"periodic-{number}", number * every_s)


def play_checkpoints(
    seed: int,
    failures: int,
    *,
    mtbf_s: float,
    save_s: float,
    restart_s: float,
    detect_s: float,
    interval_s: float,
) -> Result:
    """Play periodic checkpoints under Poisson failures, as in :func:`checkpointing.ettr`."""
    durable = Tier(save_s=save_s, restart_s=restart_s, interval_s=interval_s)
    hits = poisson_hits(np.random.default_rng(seed), mtbf_s)
    return fleet(plain_job(durable=durable, detect_s=detect_s), hits, mtbf_s * failures).finish()


def play_predictions(
    seed: int,
    failures: int,
    *,
    mtbf_s: float,
    save_s: float,
    proactive_save_s: float,
    restart_s: float,
    detect_s: float,
    recall: float,
    precision: float,
    period_s: float,
) -> Result:
    """Play a proactive checkpoint for every prediction, as in :func:`formulas.prediction_waste`.

    It is complete just before a predicted failure.
    """
    rng = np.random.default_rng(seed)
    wall_s = mtbf_s * failures
    failures_s = _poisson(rng, mtbf_s, wall_s)
    predicted_s = failures_s[rng.random(len(failures_s)) < recall] - LEAD_S
    alarms_s = np.concatenate([predicted_s, _false_alarms(rng, mtbf_s, recall, precision, wall_s)])
    durable = Tier(save_s=save_s, restart_s=restart_s, interval_s=period_s - save_s)
    job = plain_job(durable=durable, detect_s=detect_s, proactive_save_s=proactive_save_s)
    hits = [_hit(str(number), ts_s) for number, ts_s in enumerate(failures_s.tolist())]
    model = fleet(job, hits, wall_s)
    for ts_s in np.sort(alarms_s - proactive_save_s).tolist():
        model.advance(to_ns(max(0.0, ts_s)))
        model.save_checkpoint()
    return model.finish()


def play_migrations(
    seed: int,
    failures: int,
    *,
    mtbf_s: float,
    save_s: float,
    pause_s: float,
    restart_s: float,
    detect_s: float,
    recall: float,
    precision: float,
    period_s: float,
) -> Result:
    """Play a migration for every prediction, as in :func:`formulas.migration_waste`.

    The failures are those of nodes, four of which work; the others are standbys and spares and
    have theirs as well. A node that failed is repaired at once. An alarm that comes during the
    pause of a migration comes to nothing; a true one is raised early enough to wait for a
    checkpoint, and once more at the last moment.
    """
    rng = np.random.default_rng(seed)
    wall_s = mtbf_s * failures
    durable = Tier(save_s=save_s, restart_s=restart_s, interval_s=period_s - save_s)
    job = plain_job(
        groups=4,
        standbys=2,
        spares=3,
        durable=durable,
        detect_s=detect_s,
        migrate_s=pause_s,
        inspect_s=save_s + pause_s + 2 * LEAD_S,
    )
    nodes = names(job)
    failures_s = _poisson(rng, mtbf_s * job.groups / len(nodes), wall_s)
    where = [nodes[place] for place in rng.integers(len(nodes), size=len(failures_s)).tolist()]
    is_predicted = rng.random(len(failures_s)) < recall
    hits = [
        _hit(str(number), ts_s, (node,))
        for number, (ts_s, node) in enumerate(zip(failures_s.tolist(), where, strict=True))
    ]
    false_s = _false_alarms(rng, mtbf_s, recall, precision, wall_s).tolist()
    places = rng.integers(job.groups, size=len(false_s)).tolist()
    alarms: list[tuple[float, int, str | int]] = [
        (ts_s, -1 - number, place)
        for number, (ts_s, place) in enumerate(zip(false_s, places, strict=True))
    ]
    for number in np.flatnonzero(is_predicted).tolist():
        last_s = float(failures_s[number]) - pause_s - LEAD_S
        alarms += [(last_s - save_s, number, where[number]), (last_s, number, where[number])]
    model = fleet(job, hits, wall_s)
    moved_ns, answered = -to_ns(pause_s), -1
    for ts_s, number, place in sorted(alarms, key=lambda alarm: alarm[0]):
        model.advance(to_ns(max(0.0, ts_s)))
        is_due = number != answered and model.now_ns >= moved_ns + to_ns(pause_s)
        if is_due and _migrate(model, place):
            moved_ns, answered = model.now_ns, number
    return model.finish()


def _migrate(model: FleetModel, place: str | int) -> bool:
    """Move the group on a node, or the so-manieth that trains, to the first warm standby."""
    workers = model.workers()
    warm = [one.group for one in workers if one.state == "standby"]
    busy = [one for one in workers if one.state in ("training", "joining")]
    at_risk = [
        one.group
        for number, one in enumerate(busy)
        if (one.node == place if isinstance(place, str) else number == place)
    ]
    if not warm or not at_risk:
        return False
    return not model.join(warm[0]) and not model.drain(at_risk[0])


def play_two_levels(
    seed: int,
    failures: int,
    *,
    local_save_s: float,
    durable_save_s: float,
    local_restart_s: float,
    durable_restart_s: float,
    job_mtbf_s: float,
    node_mtbf_s: float,
    segments: int,
    work_s: float,
) -> Result:
    """Play two kinds of checkpoints, as in :func:`formulas.two_level_ettr_exact`.

    Faults of the job come every ``job_mtbf_s``, lost nodes every ``node_mtbf_s``; ``failures``
    are those of the first kind. A pattern ends with one checkpoint that costs both saves.
    """
    local = Tier(save_s=local_save_s, restart_s=local_restart_s, interval_s=work_s / segments)
    durable = Tier(
        save_s=local_save_s + durable_save_s, restart_s=durable_restart_s, interval_s=work_s
    )
    job = plain_job(durable=durable, local=local)
    soft, hard = np.random.default_rng(seed).spawn(2)
    hits = heapq.merge(
        poisson_hits(soft, job_mtbf_s, name="job"),
        poisson_hits(hard, node_mtbf_s, nodes=names(job), name="node"),
        key=lambda hit: hit.ts_ns,
    )
    return fleet(job, hits, job_mtbf_s * failures).finish()


def play_steps(
    seed: int, failures: int, *, groups: int, step_s: float, mtbf_s: float, rejoin_s: float
) -> Result:
    """Play per-step recovery, as in :func:`formulas.per_step_efficiency`."""
    job = plain_job(groups=groups, recovery="per_step", step_s=step_s, rejoin_s=rejoin_s)
    return fleet(job, poisson_hits(np.random.default_rng(seed), mtbf_s), mtbf_s * failures).finish()


def estimate(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of independent runs and its standard error."""
    return float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(len(values)))


def _poisson(rng: np.random.Generator, mean_s: float, wall_s: float) -> NDArray[np.float64]:
    """Return the times of a Poisson process up to ``wall_s``: as many, uniformly spread."""
    return np.sort(rng.uniform(0.0, wall_s, rng.poisson(wall_s / mean_s)))


def _false_alarms(
    rng: np.random.Generator, mtbf_s: float, recall: float, precision: float, wall_s: float
) -> NDArray[np.float64]:
    return _poisson(rng, mtbf_s * precision / (recall * (1 - precision)), wall_s)


def _hit(name: str, ts_s: float, nodes: tuple[str, ...] = ()) -> Hit:
    """Return a failure of the nodes, or of the job, that is repaired at once."""
    follows: Follows = "component" if nodes else "job"
    return Hit(id=name, ts_ns=to_ns(ts_s), nodes=nodes, follows=follows, repair_ns=0)
