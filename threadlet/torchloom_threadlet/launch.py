"""The launch that this process belongs to, and the error that ended a rank of torchrun."""

import contextlib
import hashlib
import json
import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

_FILE = "torchloom_error.txt"
_MOST_CHARACTERS = 1000
_TAIL_BYTES = 4096

_OWN = secrets.token_hex(8)
"""The id in a process without a known launcher; its forks share it."""


class Launch(NamedTuple):
    """One start of a job by its launcher.

    ``id``: the same in all processes that the launcher starts and restarts.
    ``resumes``: whether it continues an earlier launch; None: decided at the first step.
    """

    id: str
    resumes: bool | None


def launch_of(environment: Mapping[str, str] = os.environ) -> Launch:
    """Return the launch that this process belongs to.

    It is ``TORCHLOOM_JOB``, else this start of torchrun's agent, else this ``srun``, else this
    process alone. Slurm requeues a job under its old number, and counts the restarts.
    """
    job = environment.get("TORCHLOOM_JOB", "")
    if job:
        return Launch(_digest("job", job), False)
    requeued = _counts(environment, "SLURM_RESTART_COUNT")
    if run_by_torchrun(environment):
        # A folder of this agent: <run id>_<random>/attempt_<restart>/<rank>/error.json.
        folder, attempt, _ = environment.get("TORCHELASTIC_ERROR_FILE", "").partition("/attempt_")
        if attempt:
            return Launch(_digest("torchrun", folder), requeued)
        return Launch(_OWN, requeued or _counts(environment, "TORCHELASTIC_RESTART_COUNT"))
    if "SLURM_PROCID" in environment and "SLURM_STEP_ID" in environment:
        names = ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID")
        return Launch(_digest("srun", *(environment.get(name, "") for name in names)), requeued)
    return Launch(_OWN, True if requeued else None)


def run_by_torchrun(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether torchrun started this process."""
    return bool(environment.get("TORCHELASTIC_RUN_ID", ""))


def _counts(environment: Mapping[str, str], variable: str) -> bool:
    return environment.get(variable, "") not in ("", "0")


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode(errors="replace")).hexdigest()[:16]


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
