"""Record an epoch of the Weaver as it runs; the Weaver daemon calls it.

Records refer to each other by the id, cause and worker of every message. An output also follows
from the input with the same ``seq``. The ids of exits and notes are those of
:class:`~torchloom_core.wire.events.Fault`, on which proposals rest.
"""

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from torchloom_core import __version__
from torchloom_core.config.schema import Config
from torchloom_core.floor.errors import StateError
from torchloom_core.floor.server_urls import shown
from torchloom_core.live.kernel.actions.kinds import kind_of
from torchloom_core.live.trajectory.columns import MessageBuffer, MessageStream
from torchloom_core.live.trajectory.layout import (
    META,
    SEALED_FORMAT,
    UNSEALED,
    Line,
    Meta,
    epoch_folder,
    state_error,
)
from torchloom_core.live.trajectory.parts import PartWriter, repair, sync_folder
from torchloom_core.live.trajectory.sealing import Sealer
from torchloom_core.wire.actions import Action
from torchloom_core.wire.codec import UNREADABLE, Bytes, encode
from torchloom_core.wire.commands import Ack
from torchloom_core.wire.decisions import (
    CommandStatus,
    ForecastWanted,
    Issue,
    KnobDesired,
    Notice,
    Outcome,
    Output,
    Proposed,
    Reply,
    Verdict,
    Withdrawal,
)
from torchloom_core.wire.events import (
    DeliveryStatus,
    Forecast,
    Input,
    NodeFault,
    Noticed,
    RecordingGap,
)
from torchloom_core.wire.messages import Exit, Hello, Note
from torchloom_core.wire.requests import Approve, Deny, Propose, Request

PART_BYTES = 64 << 20
BUFFER_BYTES = 32 << 20
"""Maximum size of the lines between two flushes."""


class TrajectoryWriter:
    """The record of one epoch: every kernel input, and all of its outputs.

    Records are buffered until :meth:`flush`, which has to precede acting on an output. After a
    failed write recording is ``paused``: the files end with a complete record, and inputs are
    dropped until :meth:`resume`. ``repair`` cuts torn records off earlier epochs. StateError if the
    folder cannot be written, or has this epoch already.
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
        repair: bool = True,
    ) -> None:
        self.folder = epoch_folder(root, epoch)
        self._sealer = Sealer(root)
        self._seq = 0
        self._messages = MessageBuffer()
        self._lines: list[bytes] = []
        self._line_bytes = 0
        self.paused = ""
        self._on_file = 0
        self._gap_why = ""
        self._gap_ns = self._last_ns = started_ns
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
            if repair:
                self.seal(repair_earlier_epochs(root))
            self._lock = _begin(self.folder, meta)
        except FileExistsError:
            raise StateError(f"{self.folder}: need a new epoch, was {epoch} again") from None
        except OSError as error:
            raise state_error(self.folder, "cannot be written", error) from None
        self._events = PartWriter(self.folder, "events", part_bytes)
        self._telemetry = PartWriter(self.folder, "telemetry", part_bytes, self._sealer.add)
        self._stream = MessageStream()

    def seal(self, parts: Iterable[Path]) -> None:
        """Seal parts of earlier epochs beside the loop."""
        for part in parts:
            self._sealer.add(part)

    def telemetry(self, message: Bytes, ts_recv_ns: int) -> None:
        """Take one telemetry input as it was sent; it never has outputs."""
        if not self._takes_input(ts_recv_ns):
            return
        if self._messages.add(self._seq, ts_recv_ns, message):
            self.flush()

    def event(self, message: Input, ts_recv_ns: int, outputs: Sequence[Output]) -> None:
        """Take any other input and its outputs."""
        if not self._takes_input(ts_recv_ns):
            return
        parts = enumerate((message, *outputs))  # all or none: a record without a part is damaged
        lines = [self._line(part, n, len(outputs), ts_recv_ns) for n, part in parts]
        self._lines += lines
        self._line_bytes += sum(map(len, lines))
        if self._line_bytes > BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Pass the buffer to the operating system, so that a kill loses nothing; else pause."""
        lines = self._lines
        self._lines, self._line_bytes = [], 0
        if self.paused:
            return
        try:
            self._append(lines, self._messages)
        except OSError as error:
            self.pause(str(state_error(self.folder, "cannot be written", error)))
        else:
            self._messages.clear()
            self._on_file = self._seq
            self._gap_why = ""

    def flush_events(self) -> None:
        """Flush if an input other than telemetry waits."""
        if self._lines:
            self.flush()

    def pause(self, why: str) -> None:
        """Drop the buffer, and all inputs until :meth:`resume`."""
        self._lines, self._messages, self._line_bytes = [], MessageBuffer(), 0
        self.paused = why
        self._gap_why = self._gap_why or why
        with suppress(OSError):
            self._telemetry.close()  # a part with lost rows is not continued

    def resume(self) -> RecordingGap:
        """Resume recording, and return the gap, to be recorded as the next input."""
        self.paused = ""
        return RecordingGap(
            first=self._on_file + 1,
            last=self._seq,
            first_ns=self._gap_ns,
            last_ns=self._last_ns,
            why=self._gap_why,
        )

    def close(self) -> None:
        """Flush to the disk and end the record."""
        self.flush()
        with suppress(OSError):  # the operating system has the data anyway
            self._events.sync()
            self._telemetry.sync()
        for file in (self._events, self._telemetry):
            with suppress(OSError):
                file.close()
        self._sealer.close()
        os.close(self._lock)

    @property
    def missing(self) -> int:
        """Number of inputs not recorded since recording was paused; 0 if it is not."""
        return self._seq - self._on_file if self.paused else 0

    def _takes_input(self, ts_ns: int) -> bool:
        """Count an input, and return whether it is recorded."""
        if self._seq == self._on_file:
            self._gap_ns = ts_ns  # in case the next flush fails
        self._seq += 1
        self._last_ns = ts_ns
        return not self.paused

    def _append(self, lines: list[bytes], messages: MessageBuffer) -> None:
        # Events go first: a crash in between then leaves a prefix of the inputs whose
        # outputs are complete, and perhaps events after it that the reader drops.
        if lines:
            self._events.append(b"".join(lines))
        if not messages:
            return
        try:
            if self._telemetry.next_is_new():
                self._stream = MessageStream()
            self._telemetry.append(*self._stream.encode(messages))
        except OSError:
            if lines:
                self._events.undo()
            raise

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
    # An effector's options may have secrets, such as a webhook's URL.
    effectors = {name: {"mode": t["mode"]} for name, t in config.effectors.items() if "mode" in t}
    return {**table, "broker": msgspec.to_builtins(broker), "effectors": effectors, "notify": {}}


def repair_earlier_epochs(root: Path) -> list[Path]:
    """Repair earlier epochs, and return their parts of telemetry that are not sealed."""
    return list(_repaired(root))


def _repaired(root: Path) -> Iterator[Path]:
    for meta in root.glob(f"epoch-*/{META}"):
        with meta.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # that Weaver is still running, and superseded
            repair(meta.parent)
            if _may_be_sealed(meta):
                yield from sorted(meta.parent.glob(UNSEALED))


def _may_be_sealed(meta: Path) -> bool:
    try:
        return msgspec.json.decode(meta.read_bytes(), type=Meta).v >= SEALED_FORMAT
    except (OSError, *UNREADABLE):
        return False


def _begin(folder: Path, meta: Meta) -> int:
    """Create the folder with its ``meta.json``, and return that file, locked while we run."""
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


class Links(NamedTuple):
    """The three columns by which records are joined; empty if not applicable."""

    id: str = ""
    cause: str = ""
    worker: str = ""


def links_of(message: Input | Output) -> Links:
    """Return the columns of one message."""
    match message:
        case Hello() | Notice() | Noticed():
            return Links(worker=message.worker)
        case Exit(worker=worker, incarnation=incarnation):
            return Links(id=f"{worker}/exit:{incarnation}", worker=worker)
        case Note(worker=worker, kind=kind, ts_ns=ts_ns):
            return Links(id=f"{worker}/{kind}:{ts_ns}", worker=worker)
        case DeliveryStatus(delivery=id) | NodeFault(id=id):
            return Links(id=id)
        case Ack() | Withdrawal():
            return Links(cause=message.command, worker=message.worker)
        case Forecast() | ForecastWanted():
            return Links(id=message.id)
        case Request(id=id, want=Approve(proposal=proposal) | Deny(proposal=proposal)):
            return Links(id=id, cause=proposal)
        case Request(id=id, want=Propose(action=action)):
            return Links(id=id, worker=_worker_of(action))
        case Request():
            return Links(id=message.id)
        case Proposed(id=id, proposal=proposal):
            return Links(id, " ".join(proposal.cause), _worker_of(proposal.action))
        case Verdict(proposal=cause, action=action) | Outcome(verdict=cause, action=action):
            return Links(cause=cause, worker=_worker_of(action))
        case CommandStatus():
            return Links(message.command, message.cause, message.worker)
        case Issue(command=command):
            return Links(command.id, command.cause, command.worker)
        case KnobDesired():
            return Links(worker=message.worker or "")
        case Reply():
            return Links(cause=message.request)
        case _:
            return Links()


def _worker_of(action: Action) -> str:
    return kind_of(action).subject(action).worker
