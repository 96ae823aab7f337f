"""Answer whether the run is healthy, and give the reasons if it is not."""

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchloom_core.live.dashboard.board import STATES, Board
from torchloom_core.live.dashboard.slow import FEWEST, NAMED, some_of
from torchloom_core.live.trajectory.summaries import summarise
from torchloom_core.wire.status import Status

HEALTHY, FINISHED, STARTING, PAUSED = "healthy", "finished", "starting", "paused"
DEGRADED, UNHEALTHY = "degraded", "unhealthy"
_ORDER = (HEALTHY, FINISHED, STARTING, PAUSED, DEGRADED, UNHEALTHY)
_STARTING_STATES = ("unknown", "standby", "joining", "paused", "draining")
_QUARANTINED = "quarantined"
_STOPPED, _WAITED_S = "trainer_stopped", "trainer_waiting_s"
_TRAINS = STATES.index("training")


def health(board: Board, status: Status | None, now_s: float) -> dict[str, Any]:
    """Return ``level`` and ``reasons``, each a level and a sentence, the worst first.

    Unhealthy: nothing trains, or ranks stall or crash-loop. Degraded: the run trains, and ranks
    are slow, failed or unreachable, or a part of the Weaver does not work. A suspended run is
    paused, also once all its ranks have ended.
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
    if status and status.broker_full:
        reasons.append((DEGRADED, f"the broker has no space: {status.broker_full} waits"))
    broken = [one.name for one in status.plugins if one.state == _QUARANTINED] if status else []
    if broken:
        reasons.append((DEGRADED, f"quarantined until the Weaver restarts: {', '.join(broken)}"))
    suspensions = status.suspensions if status else ()
    suspended = [summarise("suspension", msgspec.to_builtins(one)) for one in suspensions]
    if not training and not suspended:
        others = [f"{count[name]} {name}" for name in _STARTING_STATES if count[name]]
        level = PAUSED if count["paused"] else STARTING
        if not others and (count["ended"] or count["left"]):
            level, others = FINISHED, ["all ranks have ended"]
        reasons.append((level, f"no rank trains: {', '.join(others) or 'no rank is running'}"))
    if not reasons:
        ranks = "1 rank trains" if training == 1 else f"{training} ranks train"
        problems = "slow, stalled, failed or unreachable"
        if training < FEWEST:
            problems = f"stalled, failed or unreachable; {FEWEST} are needed to find a slow one"
        reasons = [(HEALTHY, f"{ranks}; none is {problems}")] if training else []
    reasons += [(HEALTHY if training else PAUSED, text) for text in suspended]
    reasons.sort(key=lambda reason: -_ORDER.index(reason[0]))
    return {"level": reasons[0][0], "reasons": reasons}


def _listed(board: Board, rows: list[int]) -> str:
    names = [board.places[row].worker for row in rows[:NAMED]]
    return some_of(names, len(rows))


def stalled(board: Board, now_s: float) -> str:
    """Return the stalled ranks in one line; before its first step a rank may still compile."""
    trains = (board.states(now_s) == _TRAINS) & (board.steps() >= 0)
    limit_s = board.time_account.stalled_after_s
    rows = np.flatnonzero(trains & (board.progress_age_s(now_s) > limit_s))
    if not len(rows):
        return ""
    ranks = "training rank has" if trains.sum() == 1 else "training ranks have"
    text = f"{len(rows)} of {trains.sum()} {ranks} finished no step for over {limit_s:.0f} s: "
    return text + _named(board, rows)


def _named(board: Board, rows: NDArray[np.intp]) -> str:
    """Name a few ranks, the likely cause first: one stalled rank stalls its peers."""
    step = board.steps()[rows]
    stopped = board.values(_STOPPED)[rows] > 0
    waits = board.values(_WAITED_S)[rows] > 0
    named = []
    for i in np.lexsort((step, waits, ~stopped))[:NAMED]:
        how = "process stopped" if stopped[i] else "waits for others" if waits[i] else ""
        at = f"{board.places[rows[i]].worker} at step {step[i]}"
        named.append(f"{at} ({how})" if how else at)
    return some_of(named, len(rows))
