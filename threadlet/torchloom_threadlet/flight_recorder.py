"""torch's Flight Recorder: the collectives a process has enqueued, and how far they came.

With gloo, too, torch 2.13 records every collective, by default the last 2000, and for each process
group the numbers of the last one enqueued and of the last one that ended, but not of the last one
started. torchft makes a new group for each quorum, so the numbers begin anew and are the same on
all its members: the other members wait for the one that has enqueued fewer.
"""

import json
import sys
from typing import Any

import msgspec

from torchloom_core.wire.limits import MAX_SHORT_TEXT, Int64, ShortText

MAX_FLIGHT_CHARS = 300_000


class Collectives(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of the process group that is waited for, else of the newest one.

    ``collective``: the first incomplete collective; empty if nothing is waited for.
    ``enqueued_seq``, ``completed_seq``: numbers of the last collective enqueued, and of the last
    one that ended, also by an error; -1 if there was none.
    """

    collective: ShortText = ""
    enqueued_seq: Int64 = -1
    completed_seq: Int64 = -1


def flight_recorder() -> str:
    """Return the Flight Recorder's dump as JSON text, empty if there is none."""
    return _dump(active=False)[:MAX_FLIGHT_CHARS]


def collectives() -> Collectives | None:
    """Return the progress of this process's collectives; None if nothing is recorded."""
    return read_collectives(_dump(active=True))


def read_collectives(dump: str) -> Collectives | None:
    """Return a dump's collectives; None if it is not one, or has another format."""
    try:
        return _read(json.loads(dump))
    except (ValueError, KeyError, TypeError, AttributeError, msgspec.ValidationError):
        return None


def _read(dump: dict[str, Any]) -> Collectives | None:
    groups = dump["pg_status"]
    waits = [entry for entry in dump.get("entries", ()) if not entry["retired"]]
    if not groups:
        return None
    first = min(waits, key=lambda entry: int(entry["record_id"]), default=None)
    group = max(map(int, groups)) if first is None else int(first["pg_id"])
    came = groups[str(group)]
    name = "" if first is None else f"{first['profiling_name']} {first['input_sizes']}"
    return Collectives(
        collective=name[:MAX_SHORT_TEXT],
        enqueued_seq=int(came["last_enqueued_collective"]),
        completed_seq=int(came["last_completed_collective"]),
    )


def _dump(*, active: bool) -> str:
    if "torch.distributed" not in sys.modules:
        return ""
    try:
        from torch._C import _distributed_c10d

        dump = _distributed_c10d._dump_fr_trace_json(True, active)  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 - a private function of torch's, best effort
        return ""
    return dump.decode(errors="replace") if isinstance(dump, bytes) else str(dump)
