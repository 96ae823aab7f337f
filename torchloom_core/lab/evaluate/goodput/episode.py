"""Draw the episode of a seed: the nodes of the job, its time span, and its failures.

All arms of a seed share the episode, so that they differ only in their actions.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from torchloom_core.config.evaluation import Evaluate
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import TraceError
from torchloom_core.lab.evaluate.goodput.job import paid_nodes
from torchloom_core.lab.simulate.failures import hits
from torchloom_core.lab.simulate.scenario import Hit
from torchloom_core.lab.trace.bundle.bundle import Bundle, Look, look_of
from torchloom_core.lab.trace.feed.roster import roster
from torchloom_core.lab.trace.feed.silences import silences
from torchloom_core.lab.trace.feed.watched import watch
from torchloom_core.wire.events import NodeFault

DAY_NS = 86_400 * SECOND_NS

Unknown = Literal["component", "job"]
"""What a failure of unknown cause is assumed to follow."""


@dataclass(frozen=True, kw_only=True)
class Episode:
    """The part of the trace that one seed uses.

    ``nodes`` are those of the job's groups, ``job_size`` of them, then of the standbys, then
    spares. ``hits`` are the failures of these nodes, in time order; a fault that follows a job
    counts if it was recorded on a node that the simulated job starts on. ``observable_faults`` has
    every fault of the fleet at its ``t_avail``, those known at the start first. ``failures`` counts
    hits on the nodes that the job starts on, and faults of the job itself; ``of_several`` are those
    of several of these nodes.
    """

    bundle: Bundle
    seed: int
    start_ns: int
    end_ns: int
    nodes: tuple[str, ...]
    job_size: int
    racks: Mapping[str, str]
    hits: tuple[Hit, ...]
    observable_faults: tuple[tuple[int, NodeFault], ...]
    failures: int
    of_several: int

    @property
    def job_nodes(self) -> tuple[str, ...]:
        """The nodes that the job starts on."""
        return self.nodes[: self.job_size]

    @property
    def wall_s(self) -> float:
        """Length of the run, seconds."""
        return (self.end_ns - self.start_ns) / SECOND_NS

    @property
    def several_nodes_mtbf_s(self) -> float:
        """Mean time between the failures that lose several nodes."""
        return self.wall_s / max(1, self.of_several)

    @property
    def mtbf_s(self) -> float:
        """Mean time between the job's failures; the whole run if there was at most one."""
        return self.wall_s / max(1, self.failures)


def rng(seed: int, name: str) -> np.random.Generator:
    """Return the random generator of a seed for one purpose."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def opened(path: Path) -> Bundle:
    """Open a bundle once per process, and again after it was replaced."""
    return _opened(path, look_of(path))


@lru_cache(maxsize=4)
def _opened(path: Path, _look: Look) -> Bundle:
    bundle = Bundle.open(path)
    bundle.digest()  # of these files, should they be replaced later
    return bundle


def span_ns(bundle: Bundle, evaluate: Evaluate, from_ns: int | None) -> tuple[int, int, int]:
    """Return first and last time for runs in the trace, and the length of a run.

    A run lasts ``[evaluate] days``, or as long as the trace allows.
    """
    manifest = bundle.manifest
    first_ns = max(manifest.start_ns, from_ns or manifest.start_ns)
    whole_ns = manifest.end_ns - first_ns
    if whole_ns <= 0:
        raise TraceError(
            f"{bundle.path}: need time after the models' training, was none of "
            f"{(manifest.end_ns - manifest.start_ns) / DAY_NS:.4g} days"
        )
    return first_ns, manifest.end_ns, min(whole_ns, round(evaluate.days * DAY_NS))


@lru_cache(maxsize=8)
def draw(
    bundle: Bundle,
    evaluate: Evaluate,
    seed: int,
    *,
    unknown: Unknown,
    from_ns: int | None = None,
) -> Episode:
    """Return the episode of a seed, the same for all arms; the last ones are cached.

    It starts after ``from_ns``, the end of the models' training. TraceError if the trace has too
    few nodes for the job.
    """
    first_ns, last_ns, length_ns = span_ns(bundle, evaluate, from_ns)
    latest_ns = last_ns - length_ns
    start_ns = first_ns + int(rng(seed, "window").integers(0, latest_ns - first_ns + 1))
    end_ns = start_ns + length_ns
    watched = watch(bundle)
    nodes = _allocate(bundle, evaluate, seed, start_ns)
    job_size = evaluate.groups * evaluate.nodes_per_group
    paid, job_nodes = frozenset(nodes), frozenset(nodes[:job_size])
    coming = hits(
        bundle, unknown=unknown, start_ns=start_ns, end_ns=end_ns, repair_s=evaluate.repair_s
    )
    fleet_inputs = roster(
        bundle, watched, start_ns=start_ns, end_ns=end_ns, repair_s=evaluate.repair_s
    )
    return Episode(
        bundle=bundle,
        seed=seed,
        start_ns=start_ns,
        end_ns=end_ns,
        nodes=nodes,
        job_size=job_size,
        racks=dict(zip(watched.node, watched.rack, strict=True)),
        hits=tuple(hit for hit in coming if hit.strikes(paid if hit.nodes else job_nodes)),
        observable_faults=tuple(
            (ts_ns, m) for ts_ns, m in fleet_inputs if isinstance(m, NodeFault)
        ),
        failures=sum(hit.strikes(job_nodes) for hit in coming),
        of_several=sum(len(job_nodes.intersection(hit.nodes)) > 1 for hit in coming),
    )


def _allocate(bundle: Bundle, evaluate: Evaluate, seed: int, start_ns: int) -> tuple[str, ...]:
    """Draw the nodes, with absent, silent or repaired ones only if there are no others."""
    candidates = sorted(set(watch(bundle).node))
    count = paid_nodes(evaluate)
    if len(candidates) < count:
        raise TraceError(
            f"{bundle.path}: need {count} nodes for the job, its standbys and spares, was "
            f"{len(candidates)}; see groups, standbys and spares in [evaluate]"
        )
    away = _away(bundle, evaluate, start_ns)
    drawn = [candidates[i] for i in rng(seed, "nodes").permutation(len(candidates)).tolist()]
    return tuple(sorted(drawn, key=lambda node: node in away)[:count])


def _away(bundle: Bundle, evaluate: Evaluate, ts_ns: int) -> set[str]:
    watched, repair_ns = watch(bundle), round(evaluate.repair_s * SECOND_NS)
    away = {
        watched.node[row]
        for event in bundle.events()
        if event.fatal
        and event.t_event <= ts_ns
        and ts_ns < (event.t_resolved or event.t_event + repair_ns)
        for row in watched.rows_of(event.component)
    }
    for part in bundle.topology():
        from_ns, until_ns = part.from_ns or ts_ns, part.until_ns or ts_ns + 1
        if not from_ns <= ts_ns < until_ns:
            away.update(watched.node[row] for row in watched.rows_of(part.id))
    silent = silences(bundle, watched, known_until_ns=bundle.manifest.end_ns)
    return away | {watched.node[one.row] for one in silent if one.from_ns <= ts_ns < one.until_ns}
