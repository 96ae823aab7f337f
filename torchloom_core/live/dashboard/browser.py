"""One open page: sends it what is new, as fast as it takes it and no faster.

An update is computed when it is sent, from the newest state: a slow or frozen browser costs only
its own connection.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from torchloom_core.floor.first_done import end_all
from torchloom_core.floor.quota import Quota
from torchloom_core.interface.arrays import Floats
from torchloom_core.live.dashboard import heatmap
from torchloom_core.live.dashboard.board import STATES, median_of
from torchloom_core.live.dashboard.downsampling import POINTS
from torchloom_core.live.dashboard.health import health
from torchloom_core.live.dashboard.preview import LandscapeNews
from torchloom_core.live.dashboard.run_state import RunState
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.limits import MAX_COUNT, MetricName, Name

_EVERY_S = 0.5
_TIERS_EVERY_S = 1.0
"""How often what a failure would lose is sent, seconds."""

PATIENCE_S = 30.0
"""How long one message may wait for a browser that does not take it, seconds."""

_CLOSE_S = 1.0
"""How long closing may take, seconds: a frozen browser does not answer."""

_PLACES_AT_ONCE = 2000
_MOST_SHOWN = 12
_MOST_SLOW = 100
_SELECTIONS_PER_S, _REST_S = 50.0, 2.0


class Selection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a page shows: the metric of its heatmap, one worker, series, standby tasks.

    ``since_s``, seconds since the epoch, is where its series begin. ``mark`` is sent back with the
    next update: a page knows by it how old that update can be at most.
    """

    metric: MetricName | None = None
    worker: Name | None = None
    series: tuple[MetricName, ...] = ()
    since_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    landscape: bool = False
    preview: bool = False
    mark: Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)] = 0


class Visitor(NamedTuple):
    """A page's user: ``name`` if a proxy has signed them on, and why they may change nothing.

    ``session`` is added to that name, or to the one that is typed.
    """

    session: str
    name: str = ""
    refusal: str = ""


class Browser:
    """The sending side of one page."""

    def __init__(self, socket: WebSocket, state: RunState, visitor: Visitor) -> None:
        self._socket = socket
        self._state = state
        self._visitor = visitor
        self._selection = Selection()
        self._is_changed = asyncio.Event()
        self._states = heatmap.Painter(heatmap.STATES)
        self._values = heatmap.Painter(heatmap.VALUES)
        self._scale: heatmap.Scale | None = None
        self._extremes: list[tuple[int, float]] = []
        self._places = 0
        self._places_version = -1
        self._record_version = 0
        self._knobs_version = -1
        self._backtest: dict[str, Any] = {}
        self._points: dict[str, tuple[float, int]] = {}
        self._mark = 0
        self._landscape = LandscapeNews()
        self._preview_version = 0
        self._recoveries_version = 0
        self._programs_version = 0
        self._tiers: list[dict[str, Any]] = []
        self._checkpoints_version = 0
        self._tiers_s = 0.0

    async def serve(self) -> None:
        """Send until the browser leaves, or takes no data."""
        await self._socket.accept()
        listening = asyncio.create_task(self._listen())
        sending = asyncio.create_task(self._send())
        try:
            await asyncio.wait({listening, sending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_all(listening, sending)
            if self._socket.application_state is WebSocketState.CONNECTED:
                with suppress(TimeoutError, WebSocketDisconnect, RuntimeError, OSError):
                    async with asyncio.timeout(_CLOSE_S):
                        await self._socket.close(1008)

    async def _listen(self) -> None:
        """Take the page's selections; a browser that sends anything else is closed."""
        quota = Quota(per_s=_SELECTIONS_PER_S, rest_s=_REST_S)
        with suppress(WebSocketDisconnect, KeyError, TypeError, *UNREADABLE):
            while True:
                data = await self._socket.receive_text()
                if not quota.takes("", time.monotonic_ns()):
                    return
                marked = msgspec.json.decode(data, type=Selection)
                self._mark, selection = marked.mark, msgspec.structs.replace(marked, mark=0)
                if selection == self._selection:
                    continue
                if selection.metric != self._selection.metric:
                    self._values.forget()
                    self._scale = None
                    self._extremes = []
                if (selection.series, selection.since_s) != (
                    self._selection.series,
                    self._selection.since_s,
                ):
                    self._points.clear()
                self._selection = selection
                self._is_changed.set()

    async def _send(self) -> None:
        with suppress(WebSocketDisconnect, TimeoutError, RuntimeError, OSError):
            while True:
                self._is_changed.clear()
                for message in self._updates():
                    async with asyncio.timeout(PATIENCE_S):
                        if isinstance(message, bytes):
                            await self._socket.send_bytes(message)
                        else:
                            await self._socket.send_text(msgspec.json.encode(message).decode())
                with suppress(TimeoutError):
                    async with asyncio.timeout(_EVERY_S):
                        await self._is_changed.wait()

    # --- updates ---

    def _updates(self) -> Iterator[dict[str, Any] | bytes]:
        state, board, now_s = self._state, self._state.board, self._state.now_s
        yield self._run_now(now_s)
        yield from self._places_now()
        frame = self._states.frame(board.states(now_s)[: self._places])
        if frame:
            yield frame
        if self._selection.metric:
            values, median = board.compared(self._selection.metric, now_s)
            values = values[: self._places]
            self._scale = heatmap.scale_of(values, self._scale)
            frame = self._values.frame(heatmap.bytes_of(values, self._scale), self._scale)
            if frame:
                yield frame
            extremes = heatmap.extremes_of(values)
            if extremes != self._extremes:
                self._extremes = extremes
                yield {"extremes": extremes, "median": median}
        if state.knobs_version != self._knobs_version:
            self._knobs_version = state.knobs_version
            yield {"knobs": state.knobs}
        if state.record.version != self._record_version:
            before, self._record_version = self._record_version, state.record.version
            yield state.record.since(before)
        if state.backtest != self._backtest:
            self._backtest = state.backtest
            yield {"backtest": state.backtest}
        state.recoveries.compute(now_s)
        if state.recoveries.version != self._recoveries_version:
            self._recoveries_version = state.recoveries.version
            yield {"recoveries": state.recoveries.rows}
        if state.programs.version != self._programs_version:
            self._programs_version = state.programs.version
            yield {"programs": state.programs.rows}
        yield from self._checkpoints_now(now_s)
        points = {name: self._points_of(name) for name in self._selection.series[:_MOST_SHOWN]}
        series = {name: point.tolist() for name, point in points.items() if len(point)}
        if series:
            yield {"series": series}
        if self._selection.landscape and (landscape := self._landscape.take(state.landscape)):
            yield {"landscape": landscape}
        if self._selection.preview and self._preview_version != state.preview_shown.version:
            self._preview_version = state.preview_shown.version
            yield {"preview": state.preview_shown.shown()}
        row = board.row_of.get(self._selection.worker or "", -1)
        if row >= 0:
            yield {"worker": board.worker(row, now_s)}

    def _run_now(self, now_s: float) -> dict[str, Any]:
        """Return what every update has: the run at a glance."""
        state, board = self._state, self._state.board
        counts = np.bincount(board.states(now_s), minlength=len(STATES))
        run: dict[str, Any] = {
            "now_s": now_s,
            "mark": self._mark,
            "name": state.run,
            "is_recorded": state.is_recorded,
            "age_s": state.age_s,
            "trouble": state.trouble,
            "session": self._visitor.session,
            "signed_on": self._visitor.name,
            "refusal": self._visitor.refusal,
            "workers": len(board),
            "counts": dict(zip(STATES, counts.tolist(), strict=True)),
            "step": board.time_account.run_step,
            "steps_per_s": board.time_account.steps_per_s,
            "loss": median_of(board.values("loss")),
            "started_s": state.started_s,
            "metrics": board.metrics,
            "leaves_out": board.leaves_out,
            "time_account": board.time_account.shares,
            "health": health(board, state.status, now_s),
            "slow": board.slow.rows()[:_MOST_SLOW],
            "slow_ratio": board.slow.ratio,
            "waiting": board.waiting(now_s),
        }
        if state.status is not None:
            run["status"] = msgspec.structs.replace(state.status, programs=())
        return {"run": run}

    def _checkpoints_now(self, now_s: float) -> Iterator[dict[str, Any]]:
        checkpoints, sent = self._state.checkpoints, self._checkpoints_version
        if sent == checkpoints.version and abs(now_s - self._tiers_s) < _TIERS_EVERY_S:
            return
        self._checkpoints_version, self._tiers_s = checkpoints.version, now_s
        tiers = checkpoints.tiers(self._state.board, now_s)
        if tiers != self._tiers:
            self._tiers = tiers
            yield {"tiers": tiers}
        if events := checkpoints.since(sent):
            yield {"saves": events}

    def _places_now(self) -> Iterator[dict[str, Any]]:
        """Yield the placements, all of them again if one has changed."""
        board = self._state.board
        if board.version == self._places_version and self._places == len(board):
            return
        if self._places_version != board.version - (len(board) - self._places):
            self._places = 0
        self._places_version = board.version
        while self._places < len(board):
            some = board.places[self._places : self._places + _PLACES_AT_ONCE]
            columns = list(zip(*some, strict=True))  # columns compress far better
            yield {"places": {"first": self._places, "columns": columns}}
            self._places += len(some)

    def _points_of(self, metric: str) -> Floats:
        """Return the points that the browser lacks; after many, all again and coarser."""
        series = self._state.board.series.get(metric)
        if series is None:
            return np.zeros((0, 4))
        begin_s, sent = self._points.get(metric, (self._selection.since_s, 0))
        if sent >= 2 * POINTS:
            begin_s, sent = self._selection.since_s, 0
        points = series.since(begin_s)
        if len(points):
            self._points[metric] = float(points[-1, 0]), sent + len(points) - 1
        return points
