"""One browser at the page: is sent what is new to it, as fast as it takes it and no faster.

What a browser lacks is computed when it is sent, from the newest state: a slow or frozen browser
costs nothing but its own connection.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any

import msgspec
import numpy as np
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from torchloom_core.dashboard import heatmap
from torchloom_core.dashboard.board import STATES
from torchloom_core.dashboard.downsampling import POINTS
from torchloom_core.dashboard.landscape import LandscapeNews
from torchloom_core.dashboard.rate_limit import RateLimit
from torchloom_core.dashboard.seen import Seen
from torchloom_core.dashboard.stalled import stalled
from torchloom_core.plugin.arrays import Floats
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.limits import MAX_COUNT, MetricName, Name

_EVERY_S = 0.5
PATIENCE_S = 30.0
"""How long one message may wait for a browser that does not take it."""

_FAREWELL_S = 1.0
"""How long it may take to tell a browser that it is let go: a frozen one hears nothing of it."""

_PLACES_AT_ONCE = 2000
_MOST_SHOWN = 12
_LOOKS_PER_S = 50

_BURST = 100


class Look(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a browser looks at: the metric of its heat map, one worker, series, standby_tasks.

    ``since_s``, seconds since the epoch, is from when on it wants the series. ``mark`` is told back
    with what is made after it was heard: by when it sent it, a page knows how old that may be.
    """

    metric: MetricName | None = None
    worker: Name | None = None
    series: tuple[MetricName, ...] = ()
    since_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    landscape: bool = False
    preview: bool = False
    mark: Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)] = 0


class Browser:
    """The sending side of one page.

    Parameters
    ----------
    session : str
        What the page's requests are sent as, after the name that its person gives.
    """

    def __init__(self, socket: WebSocket, seen: Seen, session: str) -> None:
        self._socket = socket
        self._seen = seen
        self._session = session
        self._look = Look()
        self._new_look = asyncio.Event()
        self._states = heatmap.Painter(heatmap.STATES)
        self._values = heatmap.Painter(heatmap.VALUES)
        self._scale: heatmap.Scale | None = None
        self._farthest: list[tuple[int, float]] = []
        self._places = 0
        self._places_version = -1
        self._record_version = 0
        self._knobs_version = -1
        self._backtest: dict[str, Any] = {}
        self._points: dict[str, tuple[float, int]] = {}
        self._mark = 0
        self._landscape = LandscapeNews()
        self._preview_version = 0

    async def serve(self) -> None:
        """Send until the browser leaves, or does not take what it is sent."""
        await self._socket.accept()
        listening = asyncio.create_task(self._listen())
        sending = asyncio.create_task(self._send())
        try:
            await asyncio.wait({listening, sending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (listening, sending):
                task.cancel()
            await asyncio.gather(listening, sending, return_exceptions=True)
            if self._socket.application_state is WebSocketState.CONNECTED:
                with suppress(TimeoutError, WebSocketDisconnect, RuntimeError, OSError):
                    async with asyncio.timeout(_FAREWELL_S):
                        await self._socket.close(1008)

    async def _listen(self) -> None:
        """Take what the browser looks at; one that says anything else is let go."""
        allowance = RateLimit(_LOOKS_PER_S, _BURST)
        with suppress(WebSocketDisconnect, KeyError, TypeError, *UNREADABLE):
            while True:
                data = await self._socket.receive_text()
                if not allowance.is_taken():
                    return
                marked = msgspec.json.decode(data, type=Look)
                self._mark, look = marked.mark, msgspec.structs.replace(marked, mark=0)
                if look == self._look:
                    continue
                if look.metric != self._look.metric:
                    self._values.forget()
                    self._scale = None
                    self._farthest = []
                if (look.series, look.since_s) != (self._look.series, self._look.since_s):
                    self._points.clear()
                self._look = look
                self._new_look.set()

    async def _send(self) -> None:
        with suppress(WebSocketDisconnect, TimeoutError, RuntimeError, OSError):
            while True:
                self._new_look.clear()
                for message in self._news():
                    async with asyncio.timeout(PATIENCE_S):
                        if isinstance(message, bytes):
                            await self._socket.send_bytes(message)
                        else:
                            await self._socket.send_text(msgspec.json.encode(message).decode())
                with suppress(TimeoutError):
                    async with asyncio.timeout(_EVERY_S):
                        await self._new_look.wait()

    # --- what is new ---

    def _news(self) -> Iterator[dict[str, Any] | bytes]:
        seen, board, now_s = self._seen, self._seen.board, self._seen.now_s
        yield self._run_now(now_s)
        yield from self._places_now()
        frame = self._states.frame(board.states(now_s)[: self._places])
        if frame:
            yield frame
        if self._look.metric:
            values = board.values(self._look.metric)[: self._places]
            self._scale = heatmap.scale_of(values, self._scale)
            frame = self._values.frame(heatmap.bytes_of(values, self._scale), self._scale)
            if frame:
                yield frame
            farthest = heatmap.farthest_of(values)
            if farthest != self._farthest:
                self._farthest = farthest
                yield {"farthest": farthest}
        if seen.knobs_version != self._knobs_version:
            self._knobs_version = seen.knobs_version
            yield {"knobs": seen.knobs}
        if seen.record.version != self._record_version:
            before, self._record_version = self._record_version, seen.record.version
            yield {
                "taken_in": [one.id for one in seen.record.taken_in_since(before)],
                "stories": [asdict(story) for story in seen.record.stories_since(before)],
                "lines": [asdict(line) for line in seen.record.lines_since(before)],
                "logs": [asdict(line) for line in seen.record.logs_since(before)],
                "tallies": {name: asdict(one) for name, one in seen.record.tallies.of.items()},
            }
        if seen.backtest != self._backtest:
            self._backtest = seen.backtest
            yield {"backtest": seen.backtest}
        points = {name: self._points_of(name) for name in self._look.series[:_MOST_SHOWN]}
        told = {name: point.tolist() for name, point in points.items() if len(point)}
        if told:
            yield {"series": told}
        if self._look.landscape and (landscape := self._landscape.take(seen.landscape)):
            yield {"landscape": landscape}
        if self._look.preview and self._preview_version != seen.preview_shown.version:
            self._preview_version = seen.preview_shown.version
            yield {"preview": seen.preview_shown.told()}
        row = board.row_of.get(self._look.worker or "", -1)
        if row >= 0:
            yield {"worker": board.worker(row, now_s)}

    def _run_now(self, now_s: float) -> dict[str, Any]:
        """Return what is told each time, which is little: also that the dashboard is there."""
        seen, board = self._seen, self._seen.board
        counts = np.bincount(board.states(now_s), minlength=len(STATES))
        told: dict[str, Any] = {
            "now_s": now_s,
            "mark": self._mark,
            "name": seen.run,
            "is_recorded": seen.is_recorded,
            "age_s": seen.age_s,
            "trouble": seen.trouble,
            "session": self._session,
            "workers": len(board),
            "counts": dict(zip(STATES, counts.tolist(), strict=True)),
            "step": board.spent.run_step,
            "metrics": board.metrics,
            "leaves_out": board.leaves_out,
            "spent": board.spent.told,
            "stalled": stalled(board, now_s),
            "slow": board.slow.told(lambda row: board.places[row].worker),
        }
        if seen.status is not None:
            told["status"] = seen.status
        return {"run": told}

    def _places_now(self) -> Iterator[dict[str, Any]]:
        """Yield where workers sit, all of it again where somebody has moved."""
        board = self._seen.board
        if board.version == self._places_version and self._places == len(board):
            return
        if self._places_version != board.version - (len(board) - self._places):
            self._places = 0
        self._places_version = board.version
        while self._places < len(board):
            some = board.places[self._places : self._places + _PLACES_AT_ONCE]
            columns = list(zip(*some, strict=True))  # alike next to alike is packed far smaller
            yield {"places": {"first": self._places, "columns": columns}}
            self._places += len(some)

    def _points_of(self, metric: str) -> Floats:
        """Return the points of a series that the browser lacks, and the last one again.

        Once many were told one by one it is all of them again, by a tier that fits: what the
        browser has stays bounded, and still begins where it wants it to.
        """
        series = self._seen.board.series.get(metric)
        if series is None:
            return np.zeros((0, 4))
        begin_s, told = self._points.get(metric, (self._look.since_s, 0))
        if told >= 2 * POINTS:
            begin_s, told = self._look.since_s, 0
        points = series.since(begin_s)
        if len(points):
            self._points[metric] = float(points[-1, 0]), told + len(points) - 1
        return points
