"""Answer whether the run is healthy, and give the reasons if it is not."""

from typing import Any

import numpy as np

from torchloom_core.live.dashboard.board import STATES, Board
from torchloom_core.live.dashboard.slow import FEWEST
from torchloom_core.live.dashboard.stalled import stalled
from torchloom_core.wire.operator import Status

HEALTHY, FINISHED, STARTING, PAUSED = "healthy", "finished", "starting", "paused"
DEGRADED, UNHEALTHY = "degraded", "unhealthy"
_ORDER = (HEALTHY, FINISHED, STARTING, PAUSED, DEGRADED, UNHEALTHY)
_STARTING_STATES = ("unknown", "standby", "joining", "paused", "draining")
_NAMED = 3
_QUARANTINED = "quarantined"


def health(board: Board, status: Status | None, now_s: float) -> dict[str, Any]:
    """Return ``level`` and ``reasons``, each a level and a sentence, the worst first.

    Unhealthy: nothing trains, or ranks stall or crash-loop. Degraded: the run trains, and ranks
    are slow, failed or unreachable, or a part of the Weaver does not work.
    """
    states = board.states(now_s)
    count = {name: int(np.count_nonzero(states == code)) for code, name in enumerate(STATES)}
    training = count["training"]
    reasons: list[tuple[str, str]] = []
    if text := stalled(board, now_s):
        reasons.append((UNHEALTHY, text))
    reasons += [(UNHEALTHY, loop.text) for loop in (status.crash_loops if status else ())]
    for state in ("failed", "unreachable"):
        if count[state]:
            level = DEGRADED if training else UNHEALTHY
            names = _listed(board, np.flatnonzero(states == STATES.index(state)).tolist())
            reasons.append((level, f"{count[state]} {state}: {names}"))
    if text := board.slow.summary(lambda row: board.places[row].worker):
        reasons.append((DEGRADED, text))
    if status and status.recording:
        reasons.append((DEGRADED, f"recording is {status.recording}"))
    broken = [one.name for one in status.plugins if one.state == _QUARANTINED] if status else []
    if broken:
        reasons.append((DEGRADED, f"quarantined until the Weaver restarts: {', '.join(broken)}"))
    if not training:
        others = [f"{count[name]} {name}" for name in _STARTING_STATES if count[name]]
        level = PAUSED if count["paused"] else STARTING
        if not others and (count["ended"] or count["left"]):
            level, others = FINISHED, ["all ranks have ended"]
        reasons.append((level, f"no rank trains: {', '.join(others) or 'no rank is running'}"))
    reasons.sort(key=lambda reason: -_ORDER.index(reason[0]))
    if not reasons:
        ranks = "1 rank trains" if training == 1 else f"{training} ranks train"
        problems = "slow, stalled, failed or unreachable"
        if training < FEWEST:
            problems = f"stalled, failed or unreachable; {FEWEST} are needed to find a slow one"
        reasons = [(HEALTHY, f"{ranks}; none is {problems}")]
    return {"level": reasons[0][0], "reasons": reasons}


def _listed(board: Board, rows: list[int]) -> str:
    names = [board.places[row].worker for row in rows[:_NAMED]]
    more = len(rows) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
