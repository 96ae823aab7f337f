"""The checkpoints of a run as its trainers report them: the newest of each tier, and each save.

Saves and failures come as notes, what a failure would lose and what a save costs as metrics. All
are computed once for all pages, and kept small whatever the number of ranks: ranks that report the
same failed save are one event.
"""

import math
from collections import OrderedDict
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from torchloom_core.floor.plain_text import plain_line
from torchloom_core.interface.arrays import Floats
from torchloom_core.live.dashboard.board import STATES, Board
from torchloom_core.wire.checkpoint_tiers import FAILED, NOT_COPIED, PATH, SAVED, TIERS
from torchloom_core.wire.messages import Note

KINDS = frozenset({SAVED, FAILED, NOT_COPIED})
"""Kinds of the notes that are shown."""

MOST_EVENTS = 300
"""Events that are stored: as many as the page stores."""

_OF_ALL = ""
"""The tier of a failure that all tiers have in common."""

_ONE_FAILURE_S = 60.0
"""Within this time ranks that report the same save report one event, seconds."""

_IN_RUN = [STATES.index("training"), STATES.index("paused")]
_LONGEST = 300


@dataclass
class _Event:
    """A save, a failed one or one without a copy; ``workers`` have reported it, one at least."""

    id: int
    version: int
    at_s: float
    tier: str
    kind: str
    step: int
    why: str = ""
    bytes: float | None = None
    seconds: float | None = None
    felt_s: float | None = None
    reports: int = 1


@dataclass
class _Tier:
    """What is known of a tier: ``counts`` of events by kind, and the newest of each kind."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    newest: dict[str, _Event] = field(default_factory=dict)


class Checkpoints:
    """The tiers of a run; ``version`` is that of the last change of an event.

    ``gpus_per_worker`` prices what a failure loses.
    """

    def __init__(self) -> None:
        self.version = 0
        self.gpus_per_worker = 1.0
        self._tiers: dict[str, _Tier] = {}
        self._events: OrderedDict[int, _Event] = OrderedDict()

    def take(self, note: Note, now_s: float) -> None:
        """Take a note of one of ``KINDS``."""
        usual = PATH if note.kind == SAVED else _OF_ALL  # of a run without tiers
        name = str(note.fields.get("tier", usual))
        if name not in TIERS:
            name = _OF_ALL
        step = _number(note.fields.get("step"))
        at_step = note.step if step is None else int(step)
        tier = self._tiers.setdefault(name, _Tier())
        self.version += 1
        same = tier.newest.get(note.kind)
        is_same = same is not None and same.step == at_step and now_s - same.at_s < _ONE_FAILURE_S
        if same is not None and is_same and note.kind != SAVED:
            same.reports += 1
            same.version = self.version
            if same.id in self._events:
                self._events.move_to_end(same.id)
            return
        event = _Event(
            id=self.version,
            version=self.version,
            at_s=now_s,
            tier=name,
            kind=note.kind,
            step=at_step,
            why=plain_line(str(note.fields.get("why", "")), _LONGEST),
            bytes=_number(note.fields.get("bytes")),
            seconds=_number(note.fields.get("seconds")),
            felt_s=_number(note.fields.get("felt_s")),
        )
        tier.counts[note.kind] += 1
        tier.newest[note.kind] = self._events[event.id] = event
        if len(self._events) > MOST_EVENTS:
            self._events.popitem(last=False)

    def tiers(self, board: Board, now_s: float) -> list[dict[str, Any]]:
        """Return a row for each tier that has reported anything, the least durable first.

        ``unsaved_s`` and ``felt_s`` are the largest of ranks that train or pause, ``lost_gpu_s`` is
        what all of them lose; None where no such rank reports it. The last row may be that of
        failures which all tiers have in common: its ``tier`` is empty.
        """
        in_run = np.isin(board.states(now_s), _IN_RUN)
        gpus = self.gpus_per_worker * int(in_run.sum())
        rows = []
        for name, (_, unsaved, felt) in TIERS.items():
            unsaved_s = _largest(board.values(unsaved)[in_run])
            if name not in self._tiers and unsaved not in board.metrics:
                continue
            rows.append(
                {
                    "tier": name,
                    "unsaved_s": unsaved_s,
                    "lost_gpu_s": None if unsaved_s is None else round(gpus * unsaved_s, 1),
                    "felt_s": _largest(board.values(felt)[in_run]),
                    **_shown(self._tiers.get(name, _Tier())),
                }
            )
        if _OF_ALL in self._tiers:
            rows.append({"tier": _OF_ALL, **_shown(self._tiers[_OF_ALL])})
        return rows

    def since(self, version: int) -> list[dict[str, Any]]:
        """Return the events that have changed after ``version``, the oldest change first."""
        found = []
        for event in reversed(self._events.values()):
            if event.version <= version:
                break
            found.append(asdict(event))
        return found[::-1]


def _shown(tier: _Tier) -> dict[str, Any]:
    newest = {kind.removeprefix("checkpoint_"): asdict(one) for kind, one in tier.newest.items()}
    counts = {kind.removeprefix("checkpoint_"): count for kind, count in tier.counts.items()}
    return {"newest": newest, "counts": counts}


def _number(value: object) -> float | None:
    if isinstance(value, int | float) and math.isfinite(value) and value >= 0:
        return float(value)
    return None


def _largest(values: Floats) -> float | None:
    valid = values[np.isfinite(values) & (values >= 0)]
    return round(float(valid.max()), 3) if len(valid) else None
