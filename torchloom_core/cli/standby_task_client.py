"""Request a standby task, and follow its results to the end."""

import asyncio
import signal
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from nats.aio.msg import Msg

from torchloom_core.cli.options import Connection
from torchloom_core.cli.output import warn
from torchloom_core.cli.progress import ReportProgress, progress
from torchloom_core.cli.standby_task_options import INTERRUPTED
from torchloom_core.cli.weaver_client import find_weaver, open_client, send
from torchloom_core.floor.errors import MessageError, RequestError
from torchloom_core.floor.first_done import end_all
from torchloom_core.live.trajectory.standby_tasks import Pieces, StandbyTasks
from torchloom_core.wire import subjects
from torchloom_core.wire.capabilities import from_json
from torchloom_core.wire.codec import UNREADABLE, decode_event
from torchloom_core.wire.decisions import CommandStatus, Outcome
from torchloom_core.wire.landscape import LandscapeRequest
from torchloom_core.wire.messages import Note
from torchloom_core.wire.operator import Answer
from torchloom_core.wire.preview import PreviewRequest

if TYPE_CHECKING:
    from torchloom_core.live.transport import ControlClient

_TRIES = 2
_PENDING = 10_000
_GRACE_S = 120.0
"""Wait this much longer than the task may take: the Weaver gives up a command earlier."""

_LAST_PIECE_S = 5.0
"""The last result and the outcome arrive by different messages."""

_StandbyTask = LandscapeRequest | PreviewRequest


class _Interrupt:
    """Ctrl-C was pressed."""


_Message = Note | CommandStatus | Outcome | Answer | RequestError | _Interrupt
"""RequestError: the request failed."""


def run(
    connection: Connection,
    action: _StandbyTask,
    end_request: _StandbyTask,
    seen: Pieces,
    show: Callable[[], None],
) -> int:
    """Run a standby task, show its results, and return the exit status.

    Results are also shown if the task failed.
    """
    try:
        interrupted = asyncio.run(run_standby_task(connection, action, end_request, seen))
    finally:
        if seen.version:
            show()
    return INTERRUPTED if interrupted else 0


async def run_standby_task(
    connection: Connection, action: _StandbyTask, end_request: _StandbyTask, seen: Pieces
) -> bool:
    """Request a standby task, and collect its results in ``seen``; return whether Ctrl-C ended it.

    Ctrl-C sends ``end_request``. Raises RequestError if the task is refused, fails, or does not end
    in time.
    """
    messages: asyncio.Queue[_Message] = asyncio.Queue()
    async with open_client(connection) as client:
        await _listen(client, find_weaver(connection).run, seen.kind, messages)
        loop = asyncio.get_running_loop()
        # Before the request: the task may begin before its answer arrives.
        loop.add_signal_handler(signal.SIGINT, messages.put_nowait, _Interrupt())
        try:
            with progress() as report_progress:
                follow = _Follow(client, action, end_request, seen, messages, report_progress)
                return await follow.to_the_end()
        finally:
            loop.remove_signal_handler(signal.SIGINT)


async def _listen(
    client: "ControlClient", run: str, kind: str, messages: asyncio.Queue[_Message]
) -> None:
    async def take_event(msg: Msg) -> None:
        with suppress(MessageError):
            event = decode_event(msg.data)
            if isinstance(event, Note) and event.kind == kind:
                messages.put_nowait(event)

    def take_notice(_: str, data: bytes) -> None:
        with suppress(*UNREADABLE):  # another kind of message
            messages.put_nowait(from_json(data, CommandStatus | Outcome))

    await client.subscribe(subjects.event(run), take_event, _PENDING)
    await client.subscribe(subjects.bulk(run), take_event, _PENDING)
    await client.listen(take_notice)


async def _propose(client: "ControlClient", action: _StandbyTask) -> Answer:
    body: dict[str, Any] = {"action": msgspec.to_builtins(action), "id": uuid.uuid4().hex}
    return await send(client, "propose", Answer, body, _TRIES)


class _Follow:
    """Follow one standby task by its messages, and end it on Ctrl-C."""

    def __init__(
        self,
        client: "ControlClient",
        action: _StandbyTask,
        end_request: _StandbyTask,
        seen: Pieces,
        messages: asyncio.Queue[_Message],
        report_progress: ReportProgress,
    ) -> None:
        self._client, self._action, self._end_request = client, action, end_request
        self._seen, self._messages, self._report_progress = seen, messages, report_progress
        self._standby_tasks = StandbyTasks(seen)
        self._ids: tuple[str, ...] = ()
        self._cause = ""
        self._interrupted = self._is_over = False
        self._early: list[_Message] = []

    async def to_the_end(self) -> bool:
        """Wait for the end of the task; return whether Ctrl-C ended it."""
        within_s = self._action.seconds + _GRACE_S
        requests = {asyncio.create_task(self._request())}
        try:
            async with asyncio.timeout(within_s) as limit:
                while not (self._is_over and self._is_whole):
                    one = await self._messages.get()
                    if isinstance(one, RequestError):
                        if not (self._interrupted and self._ids):
                            raise one
                        warn(f"the task may still run: {one}")
                        break
                    if isinstance(one, _Interrupt):
                        if self._interrupted:
                            warn("the task may still run: the command did not wait for its end")
                            break
                        self._interrupted = True
                        requests.add(asyncio.create_task(self._request_end(set(requests))))
                    self._take(one)
                    if self._is_over or self._is_whole:
                        limit.reschedule(asyncio.get_running_loop().time() + _LAST_PIECE_S)
        except TimeoutError:
            if not (self._is_over or self._is_whole):
                raise RequestError(
                    f"not finished after {within_s:g} s; it may still run: see torchloom status"
                ) from None
        finally:
            await end_all(*requests)
        if not (self._is_whole or self._interrupted):
            kind = self._seen.kind
            missing = f"some results did not arrive: torchloom {kind} TRAJECTORY shows all recorded"
            if not self._seen.version:
                raise RequestError(f"done, but {missing}")
            warn(missing)
        elif not (self._is_over or self._interrupted):
            warn("all results arrived, but no outcome from the Weaver: see torchloom status")
        return self._interrupted

    @property
    def _is_whole(self) -> bool:
        """Whether the last result of each standby has arrived."""
        return self._seen.end is not None and len(self._seen.commands) >= len(self._ids)

    async def _request(self) -> None:
        """Request the task, and queue the answer with the other messages."""
        try:
            answer = await _propose(self._client, self._action)
            self._messages.put_nowait(answer if answer.ok else RequestError(answer.text))
        except RequestError as error:
            self._messages.put_nowait(error)

    async def _request_end(self, requests: "set[asyncio.Task[None]]") -> None:
        """Request the end once the task's request is answered; the task may have ended by then."""
        await asyncio.wait(requests)
        try:
            await _propose(self._client, self._end_request)
        except RequestError as error:
            self._messages.put_nowait(error)

    def _take(self, one: _Message) -> None:
        match one:
            case Answer() if not self._ids:
                self._ids = one.ids
                early, self._early = self._early, []
                for message in early:
                    self._take(message)
            case _ if not self._ids:
                self._early.append(one)  # messages before the answer, of any standby task
            case Note() as note if note.fields.get("command") in self._ids:
                self._standby_tasks.take(note)
                self._report_progress(self._seen.kind, self._seen.points, max(self._seen.of, 1))
            case CommandStatus() as status if status.command in self._ids:
                self._standby_tasks.take_status(status)
                self._cause = status.cause
            case Outcome() as outcome if outcome.verdict in (self._cause, *self._ids):
                if outcome.result != "done":
                    detail = " ".join(outcome.detail.split())
                    raise RequestError(f"{outcome.result}: {detail}")
                self._is_over = True
