"""The fleet model on nodes that fail and are repaired, against simpy on the same failures."""

import gc
import math
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
import simpy_fleet
from figure import Figure, medians

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.lab.simulate.event_queue import EventQueue
from torchloom_core.lab.simulate.model import FleetModel
from torchloom_core.lab.simulate.scenario import Hit, JobSpec, Tier
from torchloom_core.plugin import Floats

_GPUS = 8
_MTBF_S, _REPAIR_S = 100_000.0, 5_000.0
_UNTIL_S = 8 * _MTBF_S
_LIVES = 32
"""Failures drawn of each node; none comes near as many by the end."""

_Found = TypeVar("_Found")


async def measure(repeats: int, *, tiny: bool) -> list[Figure]:
    """Play the same failures on the fleet model and on simpy, in turns."""
    bench = _Bench(100 if tiny else 10_000)
    rows = [bench.turn() for _ in range(repeats)]
    return [
        Figure(
            "events",
            f"fleet model / simpy that keeps the same books, events/s; {bench.nodes:,} nodes",
            2,
            "at least",
            [row["fleet_events_per_s"] / row["simpy_events_per_s"] for row in rows],
            medians(rows),
        )
    ]


class _Bench:
    """The failures, drawn once, and what plays them."""

    def __init__(self, nodes: int) -> None:
        rng = np.random.default_rng(0)
        lasts_s = rng.exponential(_MTBF_S, (nodes, _LIVES))
        repair_s = rng.exponential(_REPAIR_S, (nodes, _LIVES))
        self.nodes = nodes
        self._names = [f"n{number:05}" for number in range(nodes)]
        self._lives = [
            list(zip(*own, strict=True))
            for own in zip(lasts_s.tolist(), repair_s.tolist(), strict=True)
        ]
        self._hits = list(_hits(self._names, lasts_s, repair_s))
        spans_s = np.stack([lasts_s, repair_s], axis=2).reshape(nodes, -1)
        self._spans_ns: list[list[int]] = np.rint(spans_s * SECOND_NS).astype(np.int64).tolist()

    def turn(self) -> dict[str, float]:
        """Play all once; return what was processed a second of CPU time."""
        books, simpy_s = _took_s(
            lambda: simpy_fleet.booked(self._names, self._lives, _GPUS, _UNTIL_S)
        )
        model, fleet_s = _took_s(lambda: self._play(_job(groups=1, nodes=self.nodes)))
        (failures, repairs), bare_s = _took_s(lambda: simpy_fleet.bare(self._lives, _UNTIL_S))
        engine, engine_s = _took_s(self._play_engine)
        running, running_s = _took_s(
            lambda: self._play(_job(groups=self.nodes * 4 // 5, nodes=self.nodes))
        )
        result = model.finish()
        events = failures + repairs
        repair_gpu_s = result.buckets["repair"] / SECOND_NS
        if not (
            len(books.record) == engine.events == events
            and math.isclose(books.repair_gpu_s, repair_gpu_s, rel_tol=1e-9)
        ):
            raise RuntimeError(
                f"need the same on both sides, was {events} events, {books.repair_gpu_s} GPU-s in "
                f"repair, and {engine.events} events, {repair_gpu_s} GPU-s"
            )
        return {
            "fleet_events_per_s": events / fleet_s,
            "simpy_events_per_s": events / simpy_s,
            "simpy_without_books_events_per_s": events / bare_s,
            "engine_without_books_events_per_s": events / engine_s,
            "fleet_with_a_job_on_80_percent_events_per_s": running.events / running_s,
        }

    def _play(self, job: JobSpec) -> FleetModel:
        end_ns = round(_UNTIL_S * SECOND_NS)
        model = FleetModel(job, self._names, self._hits, start_ns=0, end_ns=end_ns)
        model.advance(end_ns)
        return model

    def _play_engine(self) -> EventQueue:
        """Play on the heap of the fleet model alone."""
        engine = EventQueue(0)

        def change(ts_ns: int, spans_ns: Iterator[int]) -> None:
            engine.at(ts_ns + next(spans_ns), change, spans_ns)

        for own in self._spans_ns:
            change(0, iter(own))
        # What simpy does not take any more at the end.
        engine.run(round(_UNTIL_S * SECOND_NS) - 1)
        return engine


def _hits(names: list[str], lasts_s: Floats, repair_s: Floats) -> Iterator[Hit]:
    """Yield the failures of all nodes, in time order."""
    fails_s = np.cumsum(lasts_s + repair_s, axis=1) - repair_s
    order = np.argsort(fails_s, axis=None, kind="stable")
    times_ns = np.rint(fails_s.ravel()[order] * SECOND_NS).astype(np.int64).tolist()
    lasting_ns = np.rint(repair_s.ravel()[order] * SECOND_NS).astype(np.int64).tolist()
    places = (order // _LIVES).tolist()
    for number, (ts_ns, repair_ns, place) in enumerate(
        zip(times_ns, lasting_ns, places, strict=True)
    ):
        yield Hit(
            id=f"h{number}",
            ts_ns=ts_ns,
            nodes=(names[place],),
            follows="component",
            repair_ns=repair_ns,
        )


def _job(*, groups: int, nodes: int) -> JobSpec:
    """Return a job of groups of one node, that recovers per step; the other nodes are spares."""
    never = Tier(save_s=10.0, restart_s=30.0, interval_s=math.inf)
    return JobSpec(
        groups=groups,
        nodes_per_group=1,
        gpus_per_node=_GPUS,
        standbys=0,
        spares=nodes - groups,
        recovery="per_step",
        step_s=10.0,
        durable=never,
        local=None,
        proactive_save_s=10.0,
        detect_s=0.0,
        migrate_s=0.0,
        rejoin_s=30.0,
        provision_s=0.0,
        warm_up_s=0.0,
        inspect_s=0.0,
    )


def _took_s(work: Callable[[], _Found]) -> tuple[_Found, float]:
    """Return what ``work`` returns, and its CPU time: nothing of it waits for anything."""
    gc.collect()
    started = time.process_time()
    found = work()
    return found, time.process_time() - started
