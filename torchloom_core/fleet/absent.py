"""Why a group or a worker that is named cannot be acted on."""

from torchloom_core.fleet.state import FleetState
from torchloom_core.suggest import nearest


def why_not_training(fleet: FleetState, group: str) -> str:
    """Return why the group cannot be acted on as one that trains, or nothing."""
    if group in fleet.groups("training", "paused"):
        return ""
    rows = [row for row, hello in enumerate(fleet.hello) if hello.group == group]
    if not rows:
        known = {hello.group for hello in fleet.hello}
        return f"no group is called {group!r}{nearest(group, known)}"
    ended = all(map(fleet.is_over, rows))
    return f"group {group} {'has ended' if ended else 'is not training'}"


def why_not_present(fleet: FleetState, worker: str) -> str:
    """Return why the worker cannot be acted on, or nothing."""
    row = fleet.row_of.get(worker)
    if row is None:
        return f"no worker is called {worker!r}{nearest(worker, fleet.row_of)}"
    return f"worker {worker} has ended" if fleet.state[row] == "gone" else ""
