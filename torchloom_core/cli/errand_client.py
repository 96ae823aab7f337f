"""Ask a stand-by for an errand, and follow it piece by piece to its end."""

import asyncio
import signal
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from nats.aio.msg import Msg

from torchloom_core.cli.options import Connection
from torchloom_core.cli.progress import Told, progress
from torchloom_core.cli.weaver_client import ask, find_weaver, open_client
from torchloom_core.errors import MessageError, RequestError
from torchloom_core.trajectory.errands import Errands
from torchloom_core.trajectory.pieces import Pieces
from torchloom_core.wire import subjects
from torchloom_core.wire.actions import MapLandscape, PreviewChange
from torchloom_core.wire.codec import UNREADABLE, decode_event
from torchloom_core.wire.events import CommandLife, Outcome
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

_Errand = MapLandscape | PreviewChange
_Heard = Note | CommandLife | Outcome | None
"""None: the person has enough."""


async def run_errand(
    connection: Connection, action: _Errand, leave_off: _Errand, seen: Pieces
) -> bool:
    """Ask for an errand, and take what comes of it; say whether a person ended it by Ctrl-C.

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
        # Before it is asked for: an errand may have begun before its answer is here.
        loop.add_signal_handler(signal.SIGINT, heard.put_nowait, None)
        try:
            answer = await _propose(client, action)
            if not answer.ok:
                raise RequestError(answer.text)
            with progress() as told:
                follow = _Follow(client, action, leave_off, seen, told)
                return await follow.to_the_end(heard, answer.ids)
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
            heard.put_nowait(msgspec.json.decode(data, type=CommandLife | Outcome))

    await client.hear(subjects.event(run), take_event, _PENDING)
    await client.listen(take_told)


async def _propose(client: "ControlClient", action: _Errand) -> Answer:
    body: dict[str, Any] = {"action": msgspec.to_builtins(action), "id": uuid.uuid4().hex}
    return await ask(client, "propose", Answer, body, _TRIES)


class _Follow:
    """Takes what is heard of one errand, and has it end where a person has enough."""

    def __init__(
        self,
        client: "ControlClient",
        action: _Errand,
        leave_off: _Errand,
        seen: Pieces,
        told: Told,
    ) -> None:
        self._client, self._action, self._leave_off = client, action, leave_off
        self._seen, self._told = seen, told
        self._errands = Errands(seen)
        self._cause = ""

    async def to_the_end(self, heard: asyncio.Queue[_Heard], ids: tuple[str, ...]) -> bool:
        """Return, once it is over, whether a person ended it."""
        seen, within_s = self._seen, self._action.seconds + _GRACE_S
        is_over = interrupted = False
        try:
            async with asyncio.timeout(within_s) as limit:
                while not (is_over and seen.end):
                    match await heard.get():
                        case None if interrupted:
                            raise KeyboardInterrupt
                        case None:
                            interrupted = True
                            await _propose(self._client, self._leave_off)
                        case Note() as note if note.fields.get("command") in ids:
                            self._errands.take(note)
                            self._told(seen.kind, seen.points, max(seen.of, 1))
                        case CommandLife() as life if life.command in ids:
                            self._errands.asked(life.command, life.worker, life.verb)
                            self._cause = life.cause
                        case Outcome() as outcome if outcome.verdict in (self._cause, *ids):
                            if outcome.result != "done":
                                said = " ".join(outcome.detail.split())
                                raise RequestError(f"{outcome.result}: {said}")
                            is_over = True
                            limit.reschedule(asyncio.get_running_loop().time() + _LAST_PIECE_S)
        except TimeoutError:
            if not is_over:
                raise RequestError(
                    f"not over after {within_s:g} s; it goes on, see torchloom status"
                ) from None
        return interrupted
