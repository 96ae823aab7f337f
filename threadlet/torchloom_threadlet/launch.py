"""The launch that this process belongs to: it distinguishes a new job from a restart."""

import hashlib
import os
import secrets
from collections.abc import Mapping
from typing import NamedTuple

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
