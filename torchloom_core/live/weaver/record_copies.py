"""Copy the leader's trajectory to its standbys through a stream of the broker.

The leader reads what it has appended to its own files, so that nothing waits for the broker: the
files are the queue. A standby writes the same files in its own state folder.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from torchloom_core.config.services import Standby
from torchloom_core.floor.errors import BrokerError, StateError
from torchloom_core.floor.files import write_whole
from torchloom_core.floor.plain_text import RateLimitedLog
from torchloom_core.live.trajectory.copying import Copies, GrowingFiles
from torchloom_core.live.trajectory.layout import epoch_folder
from torchloom_core.live.transport import NatsBus
from torchloom_core.live.transport.record_stream import Piece, RecordStream
from torchloom_core.wire.codec import UNREADABLE

_log = logging.getLogger(__name__)

_EVERY_S = 0.25
_PAUSE_S = 1.0
_MOST_PIECES = 64
_SLOW_S = 8.0
"""A broker that takes longer to store or to give the record is not waited for; a cluster that has
lost a server elects another leader of the stream within about 6 s."""

_AGAIN_S = 0.2
_BEHIND_S = 20.0
"""A standby that takes over copies the rest of the record for so long: what it does not know of may
be on record twice or without an end, although it had no effect."""

_LATE_S = 10.0
_LAST_S = 2.0
"""How long a leader that ends waits for its last pieces to be stored."""


class RecordSender:
    """Sends an epoch's files, once a first standby has waited for the run."""

    def __init__(
        self, stream: RecordStream, bus: NatsBus, settings: Standby, root: Path, epoch: int
    ) -> None:
        self._stream = stream
        self._standbys = bus.standbys
        self._lease = bus.lease
        self._settings = settings
        self._root = root
        self._epoch = epoch
        self._files: GrowingFiles | None = None
        self._is_unread = self._is_made = False
        self._limited_log = RateLimitedLog(_log)
        self._wanted = self._sent = 0
        self._works = True
        self._news = asyncio.Condition()

    async def sent(self) -> None:
        """Wait until what is on file now is stored at the broker, unless that fails or is slow.

        A successor on another host then knows each decision that was acted on, the first ones of
        this Weaver included.
        """
        if (self._is_unread and self._files is None) or not self._works:
            return
        self._wanted += 1
        wanted = self._wanted
        with suppress(TimeoutError):
            async with asyncio.timeout(_SLOW_S), self._news:
                self._news.notify_all()
                await self._news.wait_for(lambda: self._sent >= wanted or not self._works)

    async def run(self) -> None:
        """Send until cancelled."""
        sent_s = time.monotonic()
        while True:
            try:
                begun = self._wanted
                while await self._send() == _MOST_PIECES:
                    pass
                sent_s = time.monotonic()
                async with self._news:
                    self._sent, self._works = begun, True
                    self._news.notify_all()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_EVERY_S):
                            await self._news.wait_for(lambda: self._wanted > self._sent)
                if self._files is not None and not self._is_made:
                    await self._make()  # an earlier Weaver's may have other limits
            except (BrokerError, OSError) as error:
                if time.monotonic() - sent_s < _SLOW_S:
                    await asyncio.sleep(_AGAIN_S)
                    continue
                async with self._news:
                    self._works = False
                    self._news.notify_all()
                if time.monotonic() - sent_s > _LATE_S:
                    late = f"the record at the standbys is {time.monotonic() - sent_s:.0f} s behind"
                    self._limited_log.add("copy", f"{late}: {error}")
                await asyncio.sleep(_PAUSE_S)

    async def finish(self) -> None:
        """Send the rest once the files are closed, if the broker takes it at once."""
        try:
            async with asyncio.timeout(_LAST_S):
                while await self._send():
                    pass
        except (BrokerError, OSError, TimeoutError) as error:
            _log.warning("the end of the record is not copied to standbys: %s", error)
        finally:
            if self._files is not None:
                self._files.close()

    async def _send(self) -> int:
        """Send some pieces, and return their number; none without standbys now or earlier."""
        files = self._files or await self._open()
        if files is None:
            return 0
        pieces = await asyncio.to_thread(files.next_pieces, _MOST_PIECES)
        await self._lease.sure()
        for piece in pieces:
            await self._stream.append(piece)
            files.done(piece)
        return len(pieces)

    async def _open(self) -> GrowingFiles | None:
        """Begin to send, if standbys wait or have waited."""
        if self._is_unread and not self._standbys.present:
            return None
        _, is_there = await self._stream.last()
        self._is_unread = not (is_there or self._standbys.present)
        if self._is_unread:
            return None
        if not is_there:
            await self._make()
        folder = epoch_folder(self._root, self._epoch)
        self._files = await asyncio.to_thread(GrowingFiles, folder, self._epoch)
        return self._files

    async def _make(self) -> None:
        await self._stream.make(self._settings.record_bytes, self._settings.record_age_s)
        self._is_made = True


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """``record-copy.json``: up to where which stream was copied, and the last epoch in it."""

    stream: str
    seq: int
    epoch: int = 0


class RecordFollower:
    """Copies the stream to this host's files; ``root`` is the run's trajectory folder."""

    def __init__(self, stream: RecordStream, root: Path) -> None:
        self._stream = stream
        self._root = root
        self._path = root / "record-copy.json"
        self._copies = Copies(root)
        self._place = _Place(stream="", seq=0)
        self._checked = False
        self._gaps: set[tuple[int, str]] = set()
        self._limited_log = RateLimitedLog(_log)

    async def run(self) -> None:
        """Copy until cancelled."""
        while True:
            try:
                await self._follow()
            except (BrokerError, StateError, OSError) as error:
                self._checked = False
                self._limited_log.add("copy", f"the record is not copied: {error}")
                await asyncio.sleep(_PAUSE_S)

    async def catch_up(self, patience_s: float) -> None:
        """Copy what the stream has now; try again after each ``patience_s``, for a while."""
        end_s = time.monotonic() + _BEHIND_S
        while True:
            try:
                async with asyncio.timeout(patience_s):
                    last, _ = await self._stream.last()
                    self._stream.forget_place()
                    while self._place.seq < last:
                        await self._follow()
            except (BrokerError, StateError, OSError, TimeoutError) as error:
                if time.monotonic() > end_s:
                    late = str(error) or "it takes too long"
                    _log.warning("the record's end is not copied: %s", late)
                    return
            else:
                return
            await asyncio.sleep(_AGAIN_S)

    def close(self) -> None:
        """Leave the copies to others."""
        self._copies.close()

    async def _follow(self) -> None:
        if not self._checked:
            last, stream = await self._stream.last()
            if not stream:  # no leader has made it yet
                await asyncio.sleep(_PAUSE_S)
                return
            stored = await asyncio.to_thread(self._stored)
            same = stored.stream == stream and stored.seq <= last
            self._place = stored if same else _Place(stream=stream, seq=0)
            self._stream.forget_place()
            self._checked = True
        pieces = await self._stream.read(self._place.seq)
        if not pieces:
            return
        writing = asyncio.ensure_future(asyncio.to_thread(self._write, pieces))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:  # the thread goes on, and nobody else may write meanwhile
            await asyncio.wait({writing})
            raise

    def _write(self, pieces: Sequence[tuple[int, Piece | None]]) -> None:
        for seq, piece in pieces:
            epoch = self._place.epoch
            # What a leader sent that was cut off arrives once another one leads: it has no effect.
            if piece is not None and piece.epoch >= epoch:
                epoch = piece.epoch
                if not self._copies.write(piece):
                    self._note_gap(piece.epoch, piece.file)
            self._place = msgspec.structs.replace(self._place, seq=seq, epoch=epoch)
        write_whole(self._path, msgspec.json.encode(self._place))

    def _note_gap(self, epoch: int, file: str) -> None:
        if (epoch, file) not in self._gaps:
            self._gaps.add((epoch, file))
            place = epoch_folder(self._root, epoch) / file
            _log.warning("%s: not copied: its beginning is older than the stream", place)

    def _stored(self) -> _Place:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_Place)
        except (OSError, *UNREADABLE):
            return _Place(stream="", seq=0)
