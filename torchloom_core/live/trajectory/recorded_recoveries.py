"""Read the recoveries of a recorded run, of all its Weaver processes."""

import logging
from contextlib import suppress
from pathlib import Path

import msgspec

from torchloom_core.live.trajectory.reader import EpochRecord, read_epochs
from torchloom_core.live.trajectory.recoveries import Recoveries
from torchloom_core.live.trajectory.recovery_phases import Recovery
from torchloom_core.live.trajectory.thinned import About
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.decisions import CommandStatus

log = logging.getLogger(__name__)

_STATUS = str(CommandStatus.__struct_config__.tag)


class _Tag(msgspec.Struct):
    type: str


def recorded_recoveries(root: Path) -> list[Recovery]:
    """Return the recoveries of a trajectory, the oldest first; StateError if it is damaged."""
    recoveries, missing = Recoveries(), list[About]()
    for record in read_epochs(root):
        if record.missing:
            log.warning("%s: its recoveries are not known", record.missing)
        missing += record.thinned
        _take(record, recoveries)
    return [
        one
        for one in recoveries.found()
        if not any(gone.first_ns <= one.lost_ns <= gone.last_ns for gone in missing)
    ]


def _take(record: EpochRecord, recoveries: Recoveries) -> None:
    for recorded in record.inputs():
        recoveries.take(recorded.message, recorded.ts_recv_ns)
        for output in recorded.outputs:
            with suppress(*UNREADABLE):
                if msgspec.json.decode(output, type=_Tag).type == _STATUS:
                    status = msgspec.json.decode(output, type=CommandStatus)
                    recoveries.take(status, recorded.ts_recv_ns)
