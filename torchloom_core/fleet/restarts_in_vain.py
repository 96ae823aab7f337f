"""Restarts by a launcher that ended before they attached, as the sidecar of the life before saw."""

from collections.abc import Mapping

from torchloom_core.wire.messages import Hello, Note
from torchloom_core.wire.operator import CrashLoop

NOTE = "restart"
"""The kind of note that tells of one."""

_ERROR_CHARACTERS = 300

_STALE_ADDRESSES = (
    "gloo may have found addresses of dead ranks in torchrun's store: start torchrun with "
    "--standalone or --rdzv-backend=c10d, and TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
)


class RestartsInVain:
    """The crash loops there are, by the row of the worker whose last life tells of it."""

    def __init__(self) -> None:
        self.of: dict[int, CrashLoop] = {}

    def hear(self, row: int, hello: Hello, note: Note) -> CrashLoop:
        """Take a note; return what is known of the loop now."""
        said, known = note.fields, self.of.get(row)
        gave_up = said.get("gave_up") is True
        loop = CrashLoop(
            worker=hello.worker,
            node=hello.node,
            failed=(known.failed if known else 0) + (not gave_up or known is None),
            restart=_count(said.get("restart")),
            most=_count(said.get("most")),
            error=_error(said),
            gave_up=gave_up,
        )
        self.of[row] = loop
        return loop

    def forget(self, row: int) -> None:
        """Take note that a rank has attached: the loop is over."""
        self.of.pop(row, None)


def _count(said: object) -> int:
    return said if isinstance(said, int) and said >= 0 else 0


def _error(said: Mapping[str, object]) -> str:
    error, status, lived_s = (said.get(name) for name in ("error", "status", "lived_s"))
    if isinstance(error, str) and error.strip():
        line = " ".join(error.split())[:_ERROR_CHARACTERS]
        return f"{line}; {_STALE_ADDRESSES}" if "connectFullMesh" in line else line
    how = "its status is not known"
    if isinstance(status, int):
        how = f"signal {-status}" if status < 0 else f"status {status}"
    after = f" after {lived_s:g} s" if isinstance(lived_s, int | float) else ""
    return f"{how}{after}, and no error was kept"
