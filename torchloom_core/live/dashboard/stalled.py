"""Find the ranks that train and finish no step."""

import numpy as np
from numpy.typing import NDArray

from torchloom_core.live.dashboard.board import STATES, Board

_STOPPED, _WAITED_S = "trainer_stopped", "trainer_waiting_s"
_NAMED = 3
_TRAINS = STATES.index("training")


def stalled(board: Board, now_s: float) -> str:
    """Return the stalled ranks in one line; empty if there are none.

    A rank before its first step does not count: it may still load or compile.
    """
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
    for i in np.lexsort((step, waits, ~stopped))[:_NAMED]:
        how = "process stopped" if stopped[i] else "waits for others" if waits[i] else ""
        at = f"{board.places[rows[i]].worker} at step {step[i]}"
        named.append(f"{at} ({how})" if how else at)
    more = len(rows) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")
