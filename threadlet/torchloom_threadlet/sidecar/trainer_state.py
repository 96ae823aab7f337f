"""What the trainer does, as its sidecar sees it: computes, waits for others, or is stopped."""

from pathlib import Path

from torchloom_core.wire.messages import FieldValue
from torchloom_threadlet.ipc import COMPUTE, Phase, Samples

_FRESH_NS = 3_000_000_000


def is_stopped(pid: int) -> bool | None:
    """Return whether the process is stopped, by SIGSTOP or a debugger; None if unknown."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None
    return state in "Tt"


def gauges(pid: int, latest: Samples, now_ns: int) -> dict[str, float]:
    """Return ``trainer_waiting_s``, ``trainer_stopped`` and ``quorum_id``, as far as known.

    The quorum is in each step's metrics as well, but a hanging trainer finishes no step. In a
    named phase ``trainer_phase_left_s`` is the rest of its bound, negative once that is over.
    """
    values: dict[str, float] = {}
    phase = phase_of(latest, now_ns)
    if phase is not None:
        waits = phase.name != COMPUTE
        values["trainer_waiting_s"] = (now_ns - phase.since_ns) / 1e9 if waits else 0.0
        values["quorum_id"] = float(phase.quorum_id)
    stopped = is_stopped(pid)
    if stopped is not None:
        values["trainer_stopped"] = float(stopped)
    if latest.named is not None:
        values["trainer_phase_left_s"] = phase_left_s(latest, now_ns)
    return values


def phase_fields(pid: int, latest: Samples, now_ns: int) -> dict[str, FieldValue]:
    """Return the phase as fields of a note, with the quorum."""
    phase = phase_of(latest, now_ns)
    fields: dict[str, FieldValue] = {} if phase is None else phase.fields(now_ns)
    return {**fields, "phase": "stopped"} if is_stopped(pid) else fields


def phase_left_s(latest: Samples, now_ns: int) -> float:
    """Return how much of the named phase's bound is left, in seconds; 0 outside a named phase."""
    return (latest.named.until_ns - now_ns) / 1e9 if latest.named is not None else 0.0


def phase_of(latest: Samples, now_ns: int) -> Phase | None:
    """Return the trainer's phase; a wait without recent confirmation counts as over."""
    phase = latest.phase
    if phase is None or phase.name == COMPUTE or now_ns - latest.looked_ns <= _FRESH_NS:
        return phase
    return Phase(name=COMPUTE, since_ns=latest.looked_ns, quorum_id=phase.quorum_id)
