"""What workers have that have left a generation."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from torchloom_core.live.rendezvous.known_worker import KnownWorker
from torchloom_core.wire.assignment import Assignment
from torchloom_core.wire.generations import Join, Stopped

Parts = Mapping[str, frozenset[int]]
"""By worker, numbers of layers or experts."""


class Holdings(NamedTuple):
    """The last step that any worker has committed, and who holds what as of it.

    ``mirrors``: by worker, the experts in its memory, and as of which step.
    """

    committed: int
    layers: Parts
    experts: Parts
    mirrors: Mapping[str, Mapping[int, int]] = MappingProxyType({})


def holdings(reports: Mapping[str, Stopped]) -> Holdings:
    """Put the workers' reports together.

    A worker that is one step behind holds what it has if it keeps that step's reduced gradients:
    it commits the step from them, without its spare layers. One that is further behind holds
    nothing.

    Raises
    ------
    ValueError
        If there is no report.
    """
    committed = max(report.committed for report in reports.values())
    layers: dict[str, frozenset[int]] = {}
    experts: dict[str, frozenset[int]] = {}
    mirrors: dict[str, Mapping[int, int]] = {}
    for name, report in reports.items():
        is_there = report.committed == committed
        reaches = is_there or report.committed == committed - 1 == report.reduced - 1
        layers[name] = frozenset(report.layers if reaches else ())
        layers[name] |= frozenset(report.spare if is_there else ())
        experts[name] = frozenset(report.experts if reaches else ())
        kept = report.expert_state.mirrors if reaches else ()
        mirrors[name] = {mirror.expert: mirror.step for mirror in kept}
    return Holdings(committed, layers, experts, mirrors)


def with_start(has: Holdings, program: Join, workers: Mapping[str, KnownWorker]) -> Holdings:
    """Return what workers hold if no step was committed since the program's start.

    Then each that has loaded the same checkpoint, or none, can make all layers and experts itself.
    """
    if has.committed != program.committed:
        return has
    layers = frozenset(range(program.layers))
    experts = frozenset(range(sum(layer.experts for layer in program.expert_layers)))
    names = [name for name, one in workers.items() if one.join.committed == program.committed]
    return has._replace(
        layers={**has.layers, **dict.fromkeys(names, layers)},
        experts={**has.experts, **dict.fromkeys(names, experts)},
    )


def problem_of(join: Join, first: Join, *, is_new: bool) -> str:
    """Return in one line what is wrong with a worker's program or store; "" if nothing is.

    Its program has to be that of the others.
    """
    host, _, port = join.store.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < 65536):
        return f"{join.worker}: store: need host:port, was {join.store!r}"
    fields = ("layers", "expert_layers", "replicas", "micro_batches", "layer_bytes")
    for name in (*fields, "committed") if is_new else fields:
        mine, theirs = getattr(join, name), getattr(first, name)
        if mine != theirs:
            return f"{join.worker}: {name}: need {theirs}, as other workers have, was {mine}"[:2000]
    return ""


def everything(assignment: Assignment, *, experts: bool = False) -> Parts:
    """Return what each worker holds if it needs no copy."""
    own = assignment.experts_of if experts else assignment.layers_of
    return {name: frozenset(own(name)) for name in assignment.workers}


def why_lost(present: Assignment, held: Parts) -> str:
    """Return in one line why no assignment can follow."""
    there = {layer for layers in held.values() for layer in layers}
    lost = sorted(set(range(present.layers)) - there)
    if not lost:
        return f"no assignment fits the {len(held)} workers that are left"
    names = ", ".join(map(str, lost[:8])) + (", ..." if len(lost) > 8 else "")
    return f"layers {names}: all workers that held them have ended; start again from a checkpoint"
