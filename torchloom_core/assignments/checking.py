"""Whether an assignment is whole, and what has to be copied before it begins."""

from collections.abc import Mapping

from torchloom_core.floor.errors import AssignmentError
from torchloom_core.wire.assignment import Assignment, Copy


def check_assignment(assignment: Assignment) -> None:
    """Check that each route computes each layer once and in order.

    Raises
    ------
    AssignmentError
        In one line that names the replica or expert.
    """
    for number, route in enumerate(assignment.routes):
        reached = 0
        for stage in route:
            if stage.first != reached or stage.end <= stage.first:
                raise AssignmentError(
                    f"replica {number}: need layers from {reached} on at {stage.worker}, "
                    f"were {stage.first} to {stage.end}"
                )
            reached = stage.end
        if reached != assignment.layers:
            raise AssignmentError(
                f"replica {number}: need all {assignment.layers} layers, were {reached}"
            )
        names = [stage.worker for stage in route]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise AssignmentError(f"replica {number}: {twice[0]} has two stages of it")
    for number, held in enumerate(assignment.experts):
        if len(set(held)) < len(held):
            raise AssignmentError(f"expert {number}: a worker is named twice")
    if both := sorted(set(assignment.standbys) & set(assignment.workers)):
        raise AssignmentError(f"standby {both[0]}: has a part already")


def copies(assignment: Assignment, held: Mapping[str, frozenset[int]]) -> tuple[Copy, ...]:
    """Return the layers to send so that each worker holds its own.

    Of the holders that have a part themselves, the one is taken that has to send the least so far.

    Parameters
    ----------
    held
        By worker, the layers that it holds whole and of the same step.

    Raises
    ------
    AssignmentError
        If none of them holds a layer.
    """
    return _sent("layer", assignment.layers_by_worker(), held)


def expert_copies(assignment: Assignment, held: Mapping[str, frozenset[int]]) -> tuple[Copy, ...]:
    """Return the experts to send, as :func:`copies` does for layers."""
    return _sent("expert", assignment.experts_by_worker(), held)


def _sent(
    what: str, needed: Mapping[str, tuple[int, ...]], held: Mapping[str, frozenset[int]]
) -> tuple[Copy, ...]:
    sent = dict.fromkeys((name for name in needed if name in held), 0)
    sources: dict[int, list[str]] = {}
    for name in sent:
        for number in held[name]:
            sources.setdefault(number, []).append(name)
    found = []
    for target, numbers in needed.items():
        own = held.get(target, frozenset())
        for number in numbers:
            if number in own:
                continue
            if number not in sources:
                raise AssignmentError(f"{what} {number}: no worker of the assignment holds it")
            source = min(sources[number], key=sent.__getitem__)
            sent[source] += 1
            found.append(Copy(number, source, target))
    return tuple(found)
