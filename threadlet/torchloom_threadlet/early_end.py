"""The error that ended a restarted rank of torchrun before it attached."""

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

_FILE = "torchloom_error.txt"
_MOST_CHARACTERS = 1000
_TAIL_BYTES = 4096


def record_final_error(environment: Mapping[str, str] = os.environ) -> None:
    """Write an exception that ends this process to a file beside torchrun's own error file.

    Only in a restarted process, and torchrun itself does so where the script's main function
    is decorated with ``torch.distributed.elastic.multiprocessing.errors.record``.
    """
    error_file = environment.get("TORCHELASTIC_ERROR_FILE", "")
    if not error_file or environment.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        return
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        with contextlib.suppress(Exception):
            error_text = f"{kind.__name__}: {error}"[:_MOST_CHARACTERS]
            Path(error_file).with_name(_FILE).write_text(error_text, encoding="utf-8")
        before(kind, error, trace)

    sys.excepthook = hook


def final_error(error_file: str) -> str:
    """Return the error that ended a rank, from that file, torchrun's own or its captured stderr."""
    if not error_file:
        return ""
    folder = Path(error_file).parent
    with contextlib.suppress(OSError, ValueError):
        return (folder / _FILE).read_text(encoding="utf-8", errors="replace")[:_MOST_CHARACTERS]
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        message = json.loads((folder / "error.json").read_bytes())["message"]
        error_text = message["message"] if isinstance(message, dict) else message
        return str(error_text)[:_MOST_CHARACTERS]
    with contextlib.suppress(OSError, IndexError), (folder / "stderr.log").open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").split("\n")
        return [line for line in lines if line.strip()][-1][:_MOST_CHARACTERS]
    return ""
