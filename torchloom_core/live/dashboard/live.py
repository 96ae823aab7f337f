"""The state of a live run: from the run's public subjects, and from the Weaver's answers.

A standby task may end while the dashboard or the broker is down; its pieces are sent only once. So
what was missed is read from a trajectory on this host.
"""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Container, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace
from nats.aio.msg import Msg

from torchloom_core.floor.clock import SECOND_NS, SystemClock
from torchloom_core.floor.errors import RequestError, StateError
from torchloom_core.live.dashboard.run_state import RunState
from torchloom_core.live.trajectory.layout import META, Meta, epoch_folder, epochs, newest_epoch
from torchloom_core.live.trajectory.standby_tasks import Pieces, newest_recorded
from torchloom_core.live.transport.inbound import Inlet
from torchloom_core.live.transport.operator import ControlClient
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.commands import Ack
from torchloom_core.wire.events import Forecast
from torchloom_core.wire.limits import KnobValue
from torchloom_core.wire.messages import Hello, KnobSpec, Telemetry, WorkerEvent
from torchloom_core.wire.operator import Answer, KnobTable, Page
from torchloom_core.wire.status import AtRisk, Status
from torchloom_core.wire.steering import LighthouseView

_ASK_EVERY_S = 1.0
_ANSWER_S = 3.0
_KNOBS_EVERY_S = 2.0
_TABLE_EVERY_S = 5.0
_OF_KNOBS = frozenset({"knob_desired", "outcome", "judged"})
_PENDING_MESSAGES = 200_000

_T = TypeVar("_T")

_MOST_VALUES = 8
"""Values of one knob that are listed; workers with other values are counted together."""

_DELAY_S = 2.0
"""Reports that workers sent while the broker was down are recorded this much later."""

_LONGEST_PAUSE_S = 16.0
"""The longest pause between two reads while more arrives: a long record takes time."""

_log = logging.getLogger(__name__)


class Live(RunState):
    """The state of a live run; ``root`` is its trajectory, if it is on this host."""

    def __init__(self, client: ControlClient, run: str, stale_after_s: float, root: Path) -> None:
        super().__init__(stale_after_s, "the Weaver has not answered yet", run)
        self._client = client
        self._root = root
        self._backfill = Backfill(root, self.landscape, self.preview)
        self._status_s = -math.inf
        self._inlet = Inlet(run, SystemClock(), self._receive, lambda subject, reason: None)
        self._knobs_due = True
        self._knobs_s = -math.inf
        self._standbys: frozenset[str] = frozenset()
        self._table_s = -math.inf
        self._epoch = -1

    async def listen(self) -> None:
        """Subscribe to everything from now on."""
        client, run = self._client, self.run
        await client.subscribe(subjects.telemetry(run), self._take_telemetry, _PENDING_MESSAGES)
        await client.subscribe(subjects.event(run), self._take_report, _PENDING_MESSAGES)
        await client.subscribe(subjects.bulk(run), self._take_report, _PENDING_MESSAGES)
        await client.subscribe(subjects.out(run), self._take_public_output, _PENDING_MESSAGES)
        await client.link.settle()
        client.link.on_reconnect(self._backfill.miss)

    async def follow(self) -> None:
        """Poll the Weaver, and close each second, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._poll())
            tasks.create_task(self._backfill.follow())
            tasks.create_task(self.programs.follow())

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            await self._ask()
            self.board.close_second(time.time())
            due = max(due + _ASK_EVERY_S, loop.time())
            await asyncio.sleep(max(0.0, due - loop.time()))

    @property
    def age_s(self) -> float | None:
        """The age of the Weaver's last answer, seconds; None before the first."""
        return None if self.status is None else time.monotonic() - self._status_s

    # --- subscriptions ---

    async def _take_telemetry(self, msg: Msg) -> None:
        self._inlet.take_telemetry(msg.subject, msg.data)

    async def _take_report(self, msg: Msg) -> None:
        self._inlet.take_report(msg)

    async def _take_public_output(self, msg: Msg) -> None:
        kind = msg.subject.removeprefix(subjects.out(self.run, ""))
        self.take_output(kind, msg.data, time.time())
        self._knobs_due |= kind in _OF_KNOBS

    def _receive(self, message: Telemetry | WorkerEvent | Ack | LighthouseView, *_: object) -> bool:
        self.take_input(message, time.time())
        self._knobs_due |= isinstance(message, Hello)
        return True

    # --- polling ---

    async def _ask(self) -> None:
        try:
            status = await self._of("status", Status, Page(workers=False))
            is_due = time.monotonic() - self._table_s >= _TABLE_EVERY_S
            if status.epoch != self._epoch or (self.board.strangers and is_due):
                # Another Weaver, or workers older than this dashboard: the whole table, once.
                self._table_s = time.monotonic()
                await self._read_table()
            if self.status is not None and status.epoch != self._epoch:
                self.record.forget_waiting(_waiting(self.status) - _waiting(status))
            if status.epoch != self._epoch:
                self.started_s = await asyncio.to_thread(_started_s, self._root)
            self._epoch = status.epoch
            self.status, self._status_s, self.trouble = status, time.monotonic(), ""
            for flight in status.flights:
                whose = flight.id, flight.worker, flight.incarnation
                self.standby_tasks.add_command(*whose, flight.verb, flight.cause)
            self._backfill.compare(status)
            self.programs.take(status.programs)
            for forecast in forecasts_of(status):
                self.record.add_forecast(forecast, time.time())
            standbys = self.board.workers_in("standby")
            if standbys != self._standbys:
                self._standbys, self._knobs_due = standbys, True
            if self._knobs_due and time.monotonic() - self._knobs_s >= _KNOBS_EVERY_S:
                self._knobs_due, self._knobs_s = False, time.monotonic()
                await self._read_knobs()
        except RequestError as error:
            self.trouble = str(error)

    async def _read_table(self) -> None:
        page = await self._of("status", Status)
        self.board.learn(page.workers, time.time())
        while page.more and page.workers:
            page = await self._of("status", Status, Page(after=page.workers[-1].worker))
            self.board.learn(page.workers, time.time())
        self.board.strangers.clear()
        self._knobs_due = True

    async def _read_knobs(self) -> None:
        first = page = await self._of("knobs", KnobTable)
        values, roles = dict(first.values), dict(first.roles)
        while page.more and page.values:
            page = await self._of("knobs", KnobTable, Page(after=list(page.values)[-1]))
            values |= page.values
            roles |= page.roles
        rows = knob_rows(replace(first, values=values, roles=roles), self._standbys)
        # A knob that differs between workers has no one value before, nor has one of two roles.
        names = Counter(row["name"] for row in rows)
        self.record.knob_values = {
            row["name"]: row["values"][0][0]
            for row in rows
            if len(row["values"]) == 1 and names[row["name"]] == 1
        }
        if rows != self.knobs:
            self.knobs, self.knobs_version = rows, self.knobs_version + 1

    async def _of(self, verb: str, answer: type[_T], page: Page | None = None) -> _T:
        body = b"" if page is None else msgspec.json.encode(page)
        reply = await self._client.ask(verb, body, _ANSWER_S)
        try:
            return msgspec.json.decode(reply, type=answer)
        except UNREADABLE:
            with suppress(*UNREADABLE):
                raise RequestError(msgspec.json.decode(reply, type=Answer).text) from None
            raise RequestError(f"{verb}: need a {answer.__name__} as the answer") from None


def _started_s(root: Path) -> float:
    """Return when the record began, seconds since the epoch; 0 if it is not on this host."""
    with suppress(OSError, IndexError, *UNREADABLE):
        meta = (epoch_folder(root, epochs(root)[0]) / META).read_bytes()
        return msgspec.json.decode(meta, type=Meta).started_ns / SECOND_NS
    return 0.0


def _waiting(status: Status) -> frozenset[str]:
    return frozenset(one.proposal for one in status.waiting)


def forecasts_of(status: Status) -> list[Forecast]:
    """Return the newest forecast of each active predictor, also where no worker is at risk."""
    at_risk: dict[str, list[AtRisk]] = {
        plugin.name: [] for plugin in status.plugins if plugin.kind == "predictor"
    }
    for one in status.at_risk:
        at_risk.setdefault(one.predictor, []).append(one)
    return [
        Forecast(
            id="",
            predictor=name,
            horizon_s=max((one.horizon_s for one in some), default=0.0),
            hazard={one.worker: one.hazard for one in some},
            why={one.worker: one.why for one in some},
        )
        for name, some in at_risk.items()
    ]


def knob_rows(table: KnobTable, standbys: Container[str]) -> list[dict[str, Any]]:
    """Return a row for each knob of each role; ``standbys`` take the values later, and count apart.

    ``role`` is empty in a run of one role.
    """
    parts = table.by_role().items()
    return [{**row, "role": role} for role, part in parts for row in _rows(part, standbys)]


def _rows(table: KnobTable, standbys: Container[str]) -> list[dict[str, Any]]:
    desired: dict[str, dict[str, KnobValue]] = {}
    since_ns: dict[str, int] = {}
    for one in table.desired:
        if one.value is not None and not one.waits:
            desired.setdefault(one.knob, {})[one.worker or ""] = one.value
            since_ns[one.knob] = max(since_ns.get(one.knob, 0), one.since_ns)
    run, waiting = _Counts(table.specs), _Counts(table.specs)
    for worker, own in table.values.items():
        (waiting if worker in standbys else run).add(own)
    return [
        {
            **msgspec.to_builtins(spec),
            "fence": spec.fence,
            "desired": desired.get(spec.name, {}),
            "since_s": since_ns.get(spec.name, 0) / 1e9,
            "values": run.most(spec.name),
            "others": run.others(spec.name),
            "standbys": waiting.most(spec.name),
            "has_preview": spec.name in table.tried,
        }
        for spec in table.specs
    ]


class _Counts:
    """Counts workers by knob and value."""

    def __init__(self, specs: tuple[KnobSpec, ...]) -> None:
        self._floats = {spec.name for spec in specs if spec.kind == "float"}
        self._have: dict[str, Counter[str]] = {}
        self._shown: dict[str, KnobValue] = {}

    def add(self, own: Mapping[str, KnobValue]) -> None:
        for knob, reported in own.items():
            is_float = knob in self._floats and isinstance(reported, int)
            value = float(reported) if is_float else reported  # 3 and 3.0 are one
            key = msgspec.json.encode(value).decode()
            self._shown[key] = value
            self._have.setdefault(knob, Counter())[key] += 1

    def most(self, knob: str) -> list[tuple[KnobValue, int]]:
        counts = self._have.get(knob, Counter()).most_common(_MOST_VALUES)
        return [(self._shown[key], count) for key, count in counts]

    def others(self, knob: str) -> int:
        have = self._have.get(knob, Counter())
        return have.total() - sum(count for _, count in have.most_common(_MOST_VALUES))


class Backfill:
    """Reads the record when results may have been missed, and replaces ``kinds`` by those in it."""

    def __init__(self, root: Path, *kinds: Pieces) -> None:
        self._root, self._kinds = root, kinds
        self._verbs = {pieces.verb for pieces in kinds}
        self._epoch = -1
        self._under_way: set[str] = set()
        self._half_read: set[str] = set()
        self._missing: set[str] = set()
        self._searched: set[str] = set()
        self._pause_s = _DELAY_S
        self._is_due = asyncio.Event()

    def compare(self, status: Status) -> None:
        """Compare with the commands under way; a new Weaver may mean that something is missing."""
        under_way = {flight.cause for flight in status.flights if flight.verb in self._verbs}
        known = self._under_way | {
            pieces.standby_task for pieces in self._kinds if pieces.standby_task
        }
        ended = {pieces.standby_task for pieces in self._kinds if pieces.end} - self._half_read
        self._missing = known - under_way - ended
        if status.epoch != self._epoch or self._missing - self._searched:
            self._is_due.set()
        self._epoch, self._under_way = status.epoch, under_way

    async def miss(self) -> None:
        """Note that reports may have been missed."""
        self._is_due.set()

    async def follow(self) -> None:
        """Read whenever it is due, for ever."""
        while True:
            await self._is_due.wait()
            await asyncio.sleep(self._pause_s)
            self._is_due.clear()
            self._searched = self._missing  # once: a task that was killed has no recorded end
            await self._read()

    async def _read(self) -> None:
        before, self._half_read = self._versions(), self._under_way
        found = [type(pieces)() for pieces in self._kinds]
        try:
            # An earlier run of that name has another epoch.
            if newest_epoch(self._root) != self._epoch:
                return
            await asyncio.to_thread(newest_recorded, self._root, *found)
        except (StateError, OSError) as error:  # it may belong to another user
            _log.warning("earlier previews and landscapes are not shown: %s", error)
            return
        is_settled = before == self._versions()  # else more arrived meanwhile
        if is_settled:
            for received, recorded in zip(self._kinds, found, strict=True):
                if (
                    recorded.standby_task == received.standby_task
                    and recorded.points < received.points
                ):
                    is_settled = False  # the record is behind
                elif recorded.version:
                    received.take_over(recorded)
        self._pause_s = _DELAY_S if is_settled else min(2 * self._pause_s, _LONGEST_PAUSE_S)
        if not is_settled:
            self._is_due.set()

    def _versions(self) -> list[int]:
        return [pieces.version for pieces in self._kinds]
