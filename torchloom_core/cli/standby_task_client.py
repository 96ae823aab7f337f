"""Ask a standby for a standby task, and follow it piece by piece to its end."""

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
from torchloom_core.cli.progress import Told, progress
from torchloom_core.cli.standby_task_options import INTERRUPTED
from torchloom_core.cli.weaver_client import ask, find_weaver, open_client
from torchloom_core.errors import MessageError, RequestError
from torchloom_core.trajectory.pieces import Pieces
from torchloom_core.trajectory.standby_tasks import StandbyTasks
from torchloom_core.wire import subjects
from torchloom_core.wire.actions import MapLandscape, PreviewChange
from torchloom_core.wire.codec import UNREADABLE, decode_event
from torchloom_core.wire.events import CommandStatus, Outcome
from torchloom_core.wire.messages import Note
from torchloom_core.wire.operator import Answer

if TYPE_CHECKING:
    from torchloom_core.transport import ControlClient

_TRIES = 2
_PENDING = 10_000
_GRACE_S = 120.0
"""Beyond its own time: a command is given up by the Weaver before."""

_LAST_PIECE_S = 5.0
"""The last piece and the outcome travel apart."""

_StandbyTask = MapLandscape | PreviewChange


class _Enough:
    """The person has pressed Ctrl-C."""


_Heard = Note | CommandStatus | Outcome | Answer | RequestError | _Enough
"""An error: it could not be asked."""


def run(
    connection: Connection,
    action: _StandbyTask,
    leave_off: _StandbyTask,
    seen: Pieces,
    show: Callable[[], None],
) -> int:
    """Run a standby task as below, show what came of it, and return the exit status.

    It is shown of one that failed, too: what was computed is lost to nobody.
    """
    try:
        has_enough = asyncio.run(run_standby_task(connection, action, leave_off, seen))
    finally:
        if seen.version:
            show()
    return INTERRUPTED if has_enough else 0


async def run_standby_task(
    connection: Connection, action: _StandbyTask, leave_off: _StandbyTask, seen: Pieces
) -> bool:
    """Ask for a standby task, and take what comes of it; say whether a person ended it by Ctrl-C.

    Parameters
    ----------
    leave_off : action
        What ends it.
    seen : Pieces
        Takes the pieces.

    Raises
    ------
    RequestError
        If it is refused, fails, or is not over long after its time.
    """
    heard: asyncio.Queue[_Heard] = asyncio.Queue()
    async with open_client(connection) as client:
        await _listen(client, find_weaver(connection).run, seen.kind, heard)
        loop = asyncio.get_running_loop()
        # Before it is asked for: a standby task may have begun before its answer is here.
        loop.add_signal_handler(signal.SIGINT, heard.put_nowait, _Enough())
        try:
            with progress() as told:
                follow = _Follow(client, action, leave_off, seen, heard, told)
                return await follow.to_the_end()
        finally:
            loop.remove_signal_handler(signal.SIGINT)


async def _listen(
    client: "ControlClient", run: str, kind: str, heard: asyncio.Queue[_Heard]
) -> None:
    async def take_event(msg: Msg) -> None:
        with suppress(MessageError):
            event = decode_event(msg.data)
            if isinstance(event, Note) and event.kind == kind:
                heard.put_nowait(event)

    def take_told(_: str, data: bytes) -> None:
        with suppress(*UNREADABLE):  # something else that is told
            heard.put_nowait(msgspec.json.decode(data, type=CommandStatus | Outcome))

    await client.hear(subjects.event(run), take_event, _PENDING)
    await client.hear(subjects.bulk(run), take_event, _PENDING)
    await client.listen(take_told)


async def _propose(client: "ControlClient", action: _StandbyTask) -> Answer:
    body: dict[str, Any] = {"action": msgspec.to_builtins(action), "id": uuid.uuid4().hex}
    return await ask(client, "propose", Answer, body, _TRIES)


class _Follow:
    """Takes what is heard of one standby_task, and has it end where a person has enough."""

    def __init__(
        self,
        client: "ControlClient",
        action: _StandbyTask,
        leave_off: _StandbyTask,
        seen: Pieces,
        heard: asyncio.Queue[_Heard],
        told: Told,
    ) -> None:
        self._client, self._action, self._leave_off = client, action, leave_off
        self._seen, self._heard, self._told = seen, heard, told
        self._standby_tasks = StandbyTasks(seen)
        self._ids: tuple[str, ...] = ()
        self._cause = ""
        self._has_enough = self._is_over = False
        self._early: list[_Heard] = []

    async def to_the_end(self) -> bool:
        """Return, once it is over, whether a person ended it."""
        within_s = self._action.seconds + _GRACE_S
        asking = {asyncio.create_task(self._ask())}
        try:
            async with asyncio.timeout(within_s) as limit:
                while not (self._is_over and self._is_whole):
                    one = await self._heard.get()
                    if isinstance(one, RequestError):
                        if not (self._has_enough and self._ids):
                            raise one
                        warn(f"it may go on: {one}")
                        break
                    if isinstance(one, _Enough):
                        if self._has_enough:
                            warn("it may go on: its end was not waited for")
                            break
                        self._has_enough = True
                        asking.add(asyncio.create_task(self._leave(set(asking))))
                    self._take(one)
                    if self._is_over or self._is_whole:
                        limit.reschedule(asyncio.get_running_loop().time() + _LAST_PIECE_S)
        except TimeoutError:
            if not (self._is_over or self._is_whole):
                raise RequestError(
                    f"not over after {within_s:g} s; it goes on, see torchloom status"
                ) from None
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        if not (self._is_whole or self._has_enough):
            kind = self._seen.kind
            said = f"not all of it was heard: torchloom {kind} TRAJECTORY shows what is on record"
            if not self._seen.version:
                raise RequestError(f"done, but {said}")
            warn(said)
        elif not (self._is_over or self._has_enough):
            warn("all of it was heard, but of the Weaver nothing: see torchloom status")
        return self._has_enough

    @property
    def _is_whole(self) -> bool:
        """Whether the end was heard of each standby that was asked."""
        return self._seen.end is not None and len(self._seen.commands) >= len(self._ids)

    async def _ask(self) -> None:
        """Ask for the standby_task, and have the answer heard among all else."""
        try:
            answer = await _propose(self._client, self._action)
            self._heard.put_nowait(answer if answer.ok else RequestError(answer.text))
        except RequestError as error:
            self._heard.put_nowait(error)

    async def _leave(self, asked: "set[asyncio.Task[None]]") -> None:
        """Ask for the end, once it is known what has begun; it may be over by itself."""
        await asyncio.wait(asked)
        try:
            await _propose(self._client, self._leave_off)
        except RequestError as error:
            self._heard.put_nowait(error)

    def _take(self, one: _Heard) -> None:
        match one:
            case Answer() if not self._ids:
                self._ids = one.ids
                early, self._early = self._early, []
                for told in early:
                    self._take(told)
            case _ if not self._ids:
                self._early.append(one)  # what is heard of before the answer, of any standby task
            case Note() as note if note.fields.get("command") in self._ids:
                self._standby_tasks.take(note)
                self._told(self._seen.kind, self._seen.points, max(self._seen.of, 1))
            case CommandStatus() as life if life.command in self._ids:
                self._standby_tasks.told(life)
                self._cause = life.cause
            case Outcome() as outcome if outcome.verdict in (self._cause, *self._ids):
                if outcome.result != "done":
                    said = " ".join(outcome.detail.split())
                    raise RequestError(f"{outcome.result}: {said}")
                self._is_over = True
