"""Crash loops: restarts that end before they attach, as reported by the earlier sidecar."""

from collections.abc import Mapping

from torchloom_core.wire.messages import Hello, Note
from torchloom_core.wire.status import CrashLoop

NOTE = "restart"
"""The kind of note that reports one."""

_ERROR_CHARACTERS = 300

_STALE_ADDRESSES = (
    "gloo may have found addresses of dead ranks in torchrun's store: start torchrun with "
    "--standalone or --rdzv-backend=c10d, and TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
)


class CrashLoops:
    """The current crash loops, by the row of the worker whose last incarnation reports it."""

    def __init__(self) -> None:
        self.of: dict[int, CrashLoop] = {}

    def add(self, row: int, hello: Hello, note: Note) -> CrashLoop:
        """Add a note; return the updated crash loop."""
        fields, before = note.fields, self.of.get(row)
        gave_up = fields.get("gave_up") is True
        loop = CrashLoop(
            worker=hello.worker,
            node=hello.node,
            failed=(before.failed if before else 0) + (not gave_up or before is None),
            restart=_count(fields.get("restart")),
            most=_count(fields.get("most")),
            error=_error(fields),
            gave_up=gave_up,
        )
        self.of[row] = loop
        return loop

    def forget(self, row: int) -> None:
        """Drop the crash loop of a rank that has attached."""
        self.of.pop(row, None)


def _count(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 else 0


def _error(fields: Mapping[str, object]) -> str:
    error, status, lived_s = (fields.get(name) for name in ("error", "status", "lived_s"))
    if isinstance(error, str) and error.strip():
        line = " ".join(error.split())[:_ERROR_CHARACTERS]
        return f"{line}; {_STALE_ADDRESSES}" if "connectFullMesh" in line else line
    how = "its exit status is unknown"
    if isinstance(status, int):
        how = f"signal {-status}" if status < 0 else f"status {status}"
    after = f" after {lived_s:g} s" if isinstance(lived_s, int | float) else ""
    return f"{how}{after}, without a recorded error"
