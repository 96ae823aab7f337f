"""torch's Flight Recorder: the collectives a process has enqueued, and how far they came.

torch 2.13 records every collective, by default the last 2000, and for each process group the
numbers of the last one enqueued and of the last one that ended; NCCL's have a recorder of their
own, which with TORCH_NCCL_ENABLE_TIMING=1 also has the last one that the GPU has started. torchft
makes a new group for each quorum, so the numbers begin anew and are the same on all its members:
the other members wait for the one that has started, or without a start enqueued, fewer.
"""

import json
import sys
from typing import Any

import msgspec

from torchloom_core.wire.limits import MAX_SHORT_TEXT, Int64, ShortText

MAX_FLIGHT_CHARS = 300_000
_RECORDERS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
"""torch's functions: for NCCL, which a CPU build lacks, and for all other backends."""


class Collectives(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of the process group that is waited for, else of the newest one.

    ``collective``: the first incomplete collective; empty if nothing is waited for.
    ``enqueued_seq``, ``started_seq``, ``completed_seq``: numbers of the last collective enqueued,
    of the last one started, and of the last one that ended, also by an error; -1 if there was none.
    gloo's starts are not recorded, NCCL's only on request.
    """

    collective: ShortText = ""
    enqueued_seq: Int64 = -1
    started_seq: Int64 = -1
    completed_seq: Int64 = -1


def flight_recorder() -> str:
    """Return the Flight Recorder's dump as JSON text, empty if there is none."""
    return _dump(_recorder(), active=False)[:MAX_FLIGHT_CHARS]


def collectives() -> Collectives | None:
    """Return the progress of this process's collectives; None if nothing is recorded."""
    return read_collectives(_dump(_recorder(), active=True))


def _recorder() -> str:
    """Return the recorder of a collective that is waited for, else of any process group."""
    found = {name: read_collectives(_dump(name, active=True)) for name in _RECORDERS}
    waits = [name for name, came in found.items() if came and came.collective]
    return next(iter((*waits, *(name for name, came in found.items() if came))), _RECORDERS[-1])


def read_collectives(dump: str) -> Collectives | None:
    """Return a dump's collectives; None if it is not one, or has another format."""
    try:
        return _read(json.loads(dump))
    except Exception:  # noqa: BLE001 - whatever the dump of another torch may lead to
        return None


def _read(dump: dict[str, Any]) -> Collectives | None:
    groups = dump["pg_status"]
    waits = [
        entry
        for entry in dump.get("entries", ())
        if not entry["retired"] and entry.get("state") != "completed"
    ]
    if not groups:
        return None
    first = min(waits, key=lambda entry: int(entry["record_id"]), default=None)
    group = max(map(int, groups)) if first is None else int(first["pg_id"])
    came = groups[str(group)]
    name = "" if first is None else f"{first['profiling_name']} {first['input_sizes']}"
    read = {
        "collective": name[:MAX_SHORT_TEXT],
        "enqueued_seq": int(came["last_enqueued_collective"]),
        "started_seq": int(came["last_started_collective"]),
        "completed_seq": int(came["last_completed_collective"]),
    }
    return msgspec.convert(read, Collectives)  # which checks that a message can have the numbers


def _dump(recorder: str, *, active: bool) -> str:
    if "torch.distributed" not in sys.modules:
        return ""
    try:
        from torch._C import _distributed_c10d

        dump = getattr(_distributed_c10d, recorder)(True, active)
    except Exception:  # noqa: BLE001 - a private function of torch's, best effort
        return ""
    return dump.decode(errors="replace") if isinstance(dump, bytes) else str(dump)
