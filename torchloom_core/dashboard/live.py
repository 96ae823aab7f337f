"""The run as the dashboard knows it: fed by what all people may hear, and by asking the Weaver."""

import asyncio
import math
import time
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
from nats.aio.msg import Msg

from torchloom_core.clock import SystemClock
from torchloom_core.dashboard.backfill import Backfill
from torchloom_core.dashboard.knob_rows import knob_rows
from torchloom_core.dashboard.seen import Seen
from torchloom_core.errors import RequestError
from torchloom_core.transport.inbound import Inlet
from torchloom_core.transport.operator import ControlClient
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.events import Forecast
from torchloom_core.wire.messages import (
    LOG,
    Ack,
    Exit,
    Hello,
    Note,
    Telemetry,
    WorkerEvent,
)
from torchloom_core.wire.operator import Answer, AtRisk, KnobTable, Page, Status
from torchloom_core.wire.steering import LighthouseView

_ASK_EVERY_S = 1.0
_ANSWER_S = 3.0
_KNOBS_EVERY_S = 2.0
_MEET_EVERY_S = 5.0
_OF_KNOBS = frozenset({"knob_desired", "outcome", "judged"})
_PENDING_MESSAGES = 200_000

_T = TypeVar("_T")


class Live(Seen):
    """What there is to know of a run now; never asks for anything to be done.

    ``root`` is where its trajectory is, if it is on this host.
    """

    def __init__(self, client: ControlClient, run: str, stale_after_s: float, root: Path) -> None:
        super().__init__(stale_after_s, "the Weaver has not answered yet", run)
        self._client = client
        self._recall = Backfill(root, self.landscape, self.preview)
        self._status_s = -math.inf
        self._inlet = Inlet(run, SystemClock(), self._receive, lambda subject, reason: None)
        self._knobs_due = True
        self._knobs_s = -math.inf
        self._standbys: frozenset[str] = frozenset()
        self._met_s = -math.inf
        self._epoch = -1

    async def listen(self) -> None:
        """Hear what is told from now on."""
        client, run = self._client, self.run
        await client.subscribe(subjects.telemetry(run), self._take_telemetry, _PENDING_MESSAGES)
        await client.subscribe(subjects.event(run), self._take_report, _PENDING_MESSAGES)
        await client.subscribe(subjects.bulk(run), self._take_report, _PENDING_MESSAGES)
        await client.subscribe(subjects.out(run), self._take_told, _PENDING_MESSAGES)
        await client.settle()
        client.on_reconnect(self._recall.miss)

    async def follow(self) -> None:
        """Ask the Weaver now and again, and close each second, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_asking())
            tasks.create_task(self._recall.follow())

    async def _keep_asking(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            await self._ask()
            self.board.close_second(time.time())
            due = max(due + _ASK_EVERY_S, loop.time())
            await asyncio.sleep(max(0.0, due - loop.time()))

    @property
    def age_s(self) -> float | None:
        """How old the Weaver's last word is; None where there was none."""
        return None if self.status is None else time.monotonic() - self._status_s

    # --- what is heard ---

    async def _take_telemetry(self, msg: Msg) -> None:
        self._inlet.take_telemetry(msg)

    async def _take_report(self, msg: Msg) -> None:
        self._inlet.take_report(msg)

    async def _take_told(self, msg: Msg) -> None:
        kind = msg.subject.removeprefix(subjects.out(self.run, ""))
        self.hear_told(kind, msg.data, time.time())
        self._knobs_due |= kind in _OF_KNOBS

    def _receive(self, message: Telemetry | WorkerEvent | Ack | LighthouseView, _: int) -> bool:
        now_s = time.time()
        match message:
            case Telemetry():
                self.board.hear(message, now_s)
            case Hello():
                self.board.meet(message, now_s)
                self._knobs_due = True
            case Exit():
                self.board.bury(message, now_s)
            case Note(kind=kind) if kind == LOG:
                self.record.log(message, now_s)
            case Note():
                self.standby_tasks.take(message)
        return True

    # --- what is asked ---

    async def _ask(self) -> None:
        try:
            status = await self._of("status", Status, Page(workers=False))
            rested = time.monotonic() - self._met_s >= _MEET_EVERY_S
            if status.epoch != self._epoch or (self.board.strangers and rested):
                # Another Weaver, or workers of before this dashboard: the whole table, once.
                self._met_s = time.monotonic()
                await self._meet_all()
            if self.status is not None and status.epoch != self._epoch:
                self.record.forget_waiting(_waiting(self.status) - _waiting(status))
            self._epoch = status.epoch
            self.status, self._status_s, self.trouble = status, time.monotonic(), ""
            for flight in status.flights:
                whose = flight.id, flight.worker, flight.incarnation
                self.standby_tasks.add_command(*whose, flight.verb, flight.cause)
            self._recall.compare(status)
            for said in forecasts_of(status):
                self.record.foresee(said, time.time())
            standbys = self.board.workers_in("standby")
            if standbys != self._standbys:
                self._standbys, self._knobs_due = standbys, True
            if self._knobs_due and time.monotonic() - self._knobs_s >= _KNOBS_EVERY_S:
                self._knobs_due, self._knobs_s = False, time.monotonic()
                await self._look_at_knobs()
        except RequestError as error:
            self.trouble = str(error)

    async def _meet_all(self) -> None:
        page = await self._of("status", Status)
        self.board.learn(page.workers, time.time())
        while page.more and page.workers:
            page = await self._of("status", Status, Page(after=page.workers[-1].worker))
            self.board.learn(page.workers, time.time())
        self.board.strangers.clear()
        self._knobs_due = True

    async def _look_at_knobs(self) -> None:
        first = page = await self._of("knobs", KnobTable)
        values = dict(first.values)
        while page.more and page.values:
            page = await self._of("knobs", KnobTable, Page(after=list(page.values)[-1]))
            values |= page.values
        told = knob_rows(first, values, self._standbys)
        if told != self.knobs:
            self.knobs, self.knobs_version = told, self.knobs_version + 1

    async def _of(self, verb: str, answer: type[_T], page: Page | None = None) -> _T:
        body = b"" if page is None else msgspec.json.encode(page)
        reply = await self._client.ask(verb, body, _ANSWER_S)
        try:
            return msgspec.json.decode(reply, type=answer)
        except UNREADABLE:
            with suppress(*UNREADABLE):
                raise RequestError(msgspec.json.decode(reply, type=Answer).text) from None
            raise RequestError(f"{verb}: need a {answer.__name__} for an answer") from None


def _waiting(status: Status) -> frozenset[str]:
    return frozenset(one.proposal for one in status.waiting)


def forecasts_of(status: Status) -> list[Forecast]:
    """Return what each active predictor says now, also of one that has nobody at risk."""
    said: dict[str, list[AtRisk]] = {
        plugin.name: [] for plugin in status.plugins if plugin.kind == "predictor"
    }
    for one in status.at_risk:
        said.setdefault(one.predictor, []).append(one)
    return [
        Forecast(
            id="",
            predictor=name,
            horizon_s=max((one.horizon_s for one in some), default=0.0),
            hazard={one.worker: one.hazard for one in some},
            why={one.worker: one.why for one in some},
        )
        for name, some in said.items()
    ]
