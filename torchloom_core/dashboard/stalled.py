"""Ranks that should train, are heard, and finish no step: the first screen says so."""

import numpy as np
from numpy.typing import NDArray

from torchloom_core.dashboard.board import STATES, Board

_STOPPED, _WAITED_S = "trainer_stopped", "trainer_waiting_s"
_NAMED = 3
_TRAINS = STATES.index("training")


def stalled(board: Board, now_s: float) -> str:
    """Return who stands still, in one line; empty where nobody does.

    A rank that has finished no step yet may still load, or compile.
    """
    trains = (board.states(now_s) == _TRAINS) & (board.steps() >= 0)
    limit_s = board.spent.standstill_s
    rows = np.flatnonzero(trains & (board.progress_age_s(now_s) > limit_s))
    if not len(rows):
        return ""
    ranks = "rank that trains has" if trains.sum() == 1 else "ranks that train have"
    said = f"{len(rows)} of {trains.sum()} {ranks} finished no step for over {limit_s:.0f} s: "
    return said + _named(board, rows)


def _named(board: Board, rows: NDArray[np.intp]) -> str:
    """Name a few, and first whom the others may wait for: all stand still once one of them does."""
    step = board.steps()[rows]
    stopped = board.values(_STOPPED)[rows] > 0
    waits = board.values(_WAITED_S)[rows] > 0
    named = []
    for i in np.lexsort((step, waits, ~stopped))[:_NAMED]:
        how = "its process is stopped" if stopped[i] else "waits for others" if waits[i] else ""
        at = f"{board.places[rows[i]].worker} at step {step[i]}"
        named.append(f"{at} ({how})" if how else at)
    more = len(rows) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")
