"""Write a life of the Weaver to disk as it happens; the Weaver daemon calls it."""

import fcntl
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from torchloom_core import __version__
from torchloom_core.config.schema import Config
from torchloom_core.errors import StateError
from torchloom_core.server_urls import shown
from torchloom_core.trajectory.columns import TelemetryStream
from torchloom_core.trajectory.layout import META, Line, Meta, life_folder, state_error
from torchloom_core.trajectory.links import links_of
from torchloom_core.trajectory.parts import PartWriter, mend, sync_folder
from torchloom_core.wire.codec import encode
from torchloom_core.wire.events import Input, Output
from torchloom_core.wire.messages import Telemetry

PART_BYTES = 64 << 20
HELD_BYTES = 32 << 20
"""What is held back at most, whoever forgets to flush."""

_BATCH_BYTES = 2048
"""What a held batch costs beside its values: the message, its names, its times."""

_ROWS_AT_ONCE = 512
"""Rows of a record batch, which are not held back any longer once there are as many: memory
that is used again is cheaper than more of it."""


class TrajectoryWriter:
    """The record of one life: every kernel input, and every output it led to.

    Records are held, not many of them, until :meth:`flush`; whoever acts on an output flushes
    first. Once a write has failed, nothing more is written: the files end with a whole record,
    and every later flush raises the same error.

    Parameters
    ----------
    root : Path
        Folder of the run, see :func:`~torchloom_core.trajectory.layout.run_folder`.
    epoch : int
        Fencing epoch of this life; its folder must not exist yet.
    plugins : mapping of str to str
        Names and versions of the active plugins.
    started_ns : int
        When this life began, nanoseconds since the Unix epoch.
    part_bytes : int
        Size at which a file gets a new part.

    Raises
    ------
    StateError
        If the folder cannot be written, or holds this epoch already.
    """

    def __init__(
        self,
        root: Path,
        run: str,
        epoch: int,
        config: Config,
        plugins: Mapping[str, str],
        started_ns: int,
        *,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self.folder = life_folder(root, epoch)
        self._seq = 0
        self._batches: list[tuple[int, int, Telemetry]] = []
        self._lines: list[bytes] = []
        self._held_bytes = 0
        self._failure = ""
        meta = Meta(
            run=run,
            epoch=epoch,
            started_ns=started_ns,
            torchloom=__version__,
            config=_without_secrets(config),
            plugins=dict(plugins),
        )
        try:
            root.mkdir(parents=True, exist_ok=True)
            _mend_earlier_lives(root)
            self._lock = _begin(self.folder, meta)
        except FileExistsError:
            raise StateError(f"{self.folder}: need a new epoch, was {epoch} again") from None
        except OSError as error:
            raise state_error(self.folder, "cannot be written", error) from None
        self._events = PartWriter(self.folder, "events", part_bytes)
        self._telemetry = PartWriter(self.folder, "telemetry", part_bytes)
        self._stream = TelemetryStream()

    def telemetry(self, batch: Telemetry, ts_recv_ns: int) -> None:
        """Take one telemetry input, which never has outputs; raises StateError as flush does."""
        self._seq += 1
        self._batches.append((self._seq, ts_recv_ns, batch))
        self._held_bytes += _BATCH_BYTES + len(batch.values)
        if len(self._batches) >= _ROWS_AT_ONCE or self._held_bytes > HELD_BYTES:
            self.flush()

    def event(self, message: Input, ts_recv_ns: int, outputs: Sequence[Output]) -> None:
        """Take any other input and what it led to; raises StateError as flush does."""
        self._seq += 1
        for n, part in enumerate((message, *outputs)):
            line = self._line(part, n, len(outputs), ts_recv_ns)
            self._lines.append(line)
            self._held_bytes += len(line)
        if self._held_bytes > HELD_BYTES:
            self.flush()

    def flush(self, sync: bool = False) -> None:
        """Hand everything to the operating system, and with ``sync`` to the disk.

        After a flush a killed process loses nothing; after one with ``sync`` a power cut
        loses nothing either.

        Raises
        ------
        StateError
            If it cannot be written: no space, no permission, a broken disk.
        """
        lines, batches = self._lines, self._batches
        self._lines, self._batches, self._held_bytes = [], [], 0
        if self._failure:
            raise StateError(self._failure)
        try:
            # Events go first: a crash in between then leaves a prefix of the inputs whose
            # outputs are complete, and perhaps events after it that the reader drops.
            if lines:
                self._events.append(b"".join(lines))
            for start in range(0, len(batches), _ROWS_AT_ONCE):
                if self._telemetry.next_is_new():
                    self._stream = TelemetryStream()
                rows = self._stream.encode(batches[start : start + _ROWS_AT_ONCE])
                self._telemetry.append(*rows)
            if sync:
                self._events.sync()
                self._telemetry.sync()
        except OSError as error:
            self._failure = str(state_error(self.folder, "cannot be written", error))
            raise StateError(self._failure) from None

    def close(self) -> None:
        """Flush to the disk and end this life; raises StateError as flush does."""
        try:
            self.flush(sync=True)
        finally:
            self._events.close()
            self._telemetry.close()
            os.close(self._lock)

    def _line(self, message: Input | Output, n: int, outputs: int, ts_ns: int) -> bytes:
        links = links_of(message)
        line = Line(
            seq=self._seq,
            n=n,
            outputs=outputs,
            ts_ns=ts_ns,
            io="out" if n else "in",
            kind=str(message.__struct_config__.tag),
            id=links.id,
            cause=links.cause,
            worker=links.worker,
            body=msgspec.Raw(encode(message)),
        )
        return encode(line) + b"\n"


def _without_secrets(config: Config) -> dict[str, object]:
    table: dict[str, object] = msgspec.to_builtins(config)
    broker = msgspec.structs.replace(config.broker, url=shown(config.broker.url))
    return {**table, "broker": msgspec.to_builtins(broker)}


def _mend_earlier_lives(root: Path) -> None:
    for meta in root.glob(f"epoch-*/{META}"):
        with meta.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # that Weaver still lives, fenced off or about to be
            mend(meta.parent)


def _begin(folder: Path, meta: Meta) -> int:
    """Make the folder with its ``meta.json``, and return the latter, locked while we live."""
    if (folder / META).exists():
        raise FileExistsError
    folder.mkdir(exist_ok=True)
    draft = folder / f"{META}.new"
    draft.write_bytes(msgspec.json.format(encode(meta)) + b"\n")
    lock = os.open(draft, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.fsync(lock)
    draft.rename(folder / META)
    sync_folder(folder)
    sync_folder(folder.parent)
    return lock
