"""Errors for a named group or worker that an action cannot apply to."""

from torchloom_core.floor.suggest import nearest
from torchloom_core.live.fleet.state import FleetState


def why_not_training(fleet: FleetState, group: str) -> str:
    """Return why the group is not training; "" if it is."""
    if group in fleet.groups("training", "paused"):
        return ""
    rows = [row for row, hello in enumerate(fleet.hello) if hello.group == group]
    if not rows:
        names = {hello.group for hello in fleet.hello}
        return f"no group is called {group!r}{nearest(group, names)}"
    ended = all(map(fleet.is_over, rows))
    return f"group {group} {'has ended' if ended else 'is not training'}"


def why_not_present(fleet: FleetState, worker: str) -> str:
    """Return why the worker is not present; "" if it is."""
    row = fleet.row_of.get(worker)
    if row is None:
        return f"no worker is called {worker!r}{nearest(worker, fleet.row_of)}"
    return f"worker {worker} has ended" if fleet.state[row] == "gone" else ""
