"""The programs that are split over workers, as pages show them: assignments, risks, what follows.

What would follow on the loss of each worker takes long for many workers, and is computed in a
thread.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from torchloom_core.assignments.answers import after_loss
from torchloom_core.assignments.price import Program, bubble, program_of, step_s
from torchloom_core.wire.assignment import Assignment, Stage
from torchloom_core.wire.generations import Outlook
from torchloom_core.wire.programs import ProgramStatus

_LOSSES_EVERY_S = 10.0
_BUDGET_S = 3.0
"""How long losses are computed: of many workers, only the first ones are looked at."""

_REST = 20
"""After which multiple of the time that it took losses are computed again, without a change."""


class ProgramsShown:
    """The programs of a run; ``version`` changes with ``rows``."""

    def __init__(self) -> None:
        self.version = 0
        self.rows: list[dict[str, Any]] = []
        self._programs: tuple[ProgramStatus, ...] = ()
        self._losses: dict[str, list[dict[str, Any]]] = {}
        self._of: dict[str, tuple[int, float]] = {}

    def take(self, programs: tuple[ProgramStatus, ...]) -> None:
        """Take the programs of a status."""
        if programs != self._programs:
            self._programs = programs
            self._show()

    async def follow(self) -> None:
        """Compute what would follow on each loss, whenever it may have changed; for ever."""
        while True:
            for one in self._programs:
                await self._look(one)
            await asyncio.sleep(1.0)

    async def _look(self, one: ProgramStatus) -> None:
        present, now_s = one.outlook.assignment, time.monotonic()
        known, looked_s = self._of.get(one.role, (0, 0.0))
        if present is None or one.outlook.program is None:
            return
        if present.generation == known and now_s < looked_s + _LOSSES_EVERY_S:
            return
        self._of[one.role] = present.generation, now_s
        found = await asyncio.to_thread(losses, one.outlook, _BUDGET_S)
        took_s = time.monotonic() - now_s
        self._of[one.role] = present.generation, now_s + _REST * took_s
        if found != self._losses.get(one.role):
            self._losses[one.role] = found
            self._show()

    def _show(self) -> None:
        self.version += 1
        self.rows = [
            {**shown(one), "losses": self._losses.get(one.role, [])} for one in self._programs
        ]


def shown(one: ProgramStatus) -> dict[str, Any]:
    """Return a program as a page shows it."""
    outlook, present = one.outlook, one.outlook.assignment
    row: dict[str, Any] = {
        "role": one.role,
        "reachable": one.reachable,
        "phase": outlook.phase,
        "waits_for": outlook.waits_for,
        "committed": outlook.committed,
        "generations": [msgspec.to_builtins(began) for began in reversed(one.generations)],
        "offer": msgspec.to_builtins(outlook.offer),
        "standbys": [_standby(outlook, name) for name in outlook.standbys],
        "routes": [],
    }
    if present is None or outlook.program is None:
        return row
    program = program_of(outlook.program, outlook.layer_s, outlook.slowness)
    single = set(present.single_copies())
    is_single = [layer in single for layer in range(present.layers)]
    return row | {
        "generation": present.generation,
        "why": present.why,
        "layers": present.layers,
        "is_measured": program.is_measured,
        "step_s": step_s(present, program),
        "bubble": bubble(present, program),
        "single_copies": sorted(single),
        "experts": present.experts,
        "routes": [
            [_stage(outlook, program, stage, is_single) for stage in route]
            for route in present.routes
        ],
    }


def _standby(outlook: Outlook, name: str) -> dict[str, Any]:
    left_out = name in outlook.left_out
    return {"worker": name, "node": outlook.nodes.get(name, ""), "left_out": left_out}


def _stage(
    outlook: Outlook, program: Program, stage: Stage, is_single: Sequence[bool]
) -> dict[str, Any]:
    slowness = program.slowness.get(stage.worker, 1.0)
    return {
        "worker": stage.worker,
        "node": outlook.nodes.get(stage.worker, ""),
        "first": stage.first,
        "last": stage.end - 1,
        "layer_s": slowness * sum((program.layer_s[layer] for layer in stage.layers), 0.0),
        "slowness": slowness,
        "single": sum(is_single[stage.first : stage.end]),
    }


def losses(outlook: Outlook, budget_s: float) -> list[dict[str, Any]]:
    """Return what would follow on the loss of each worker: the cheapest answer, or none.

    Those that alone hold a layer come first; once the time is over, the others are left out.
    """
    if outlook.assignment is None or outlook.program is None:
        return []
    program = program_of(outlook.program, outlook.layer_s, outlook.slowness)
    ready = tuple(name for name in outlook.standbys if name not in outlook.left_out)
    present = msgspec.structs.replace(outlook.assignment, standbys=ready)
    own = present.layers_by_worker()
    held = {name: frozenset(own.get(name, ())) for name in (*present.workers, *ready)}
    single = set(present.single_copies())
    found: list[dict[str, Any]] = []
    until_s = time.monotonic() + budget_s
    for name in sorted(present.workers, key=lambda name: not single.intersection(held[name])):
        if time.monotonic() >= until_s:
            break
        found.append(_loss(present, name, held, program))
    return found


def _loss(
    present: Assignment, worker: str, held: dict[str, frozenset[int]], program: Program
) -> dict[str, Any]:
    left = {name: layers for name, layers in held.items() if name != worker}
    found = after_loss(present, left.keys(), left, program)
    if not found:
        return {"worker": worker, "why": ""}
    answer, price = found[0]
    return {
        "worker": worker,
        "why": answer.why,
        "step_s": price.step_s,
        "stall_s": price.stall_s,
        "copied_bytes": price.copied_bytes,
        "lost_gpu_s": price.lost_gpu_s,
    }
