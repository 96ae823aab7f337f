"""What the kernel tells people beside its decisions, in words."""

from collections.abc import Sequence

from torchloom_core.clock import SECOND_NS, moment_text
from torchloom_core.suggest import listed
from torchloom_core.wire.endings import in_words
from torchloom_core.wire.events import Fault, KnobDesired, Notice, RecordingGap
from torchloom_core.wire.limits import MAX_WORKERS
from torchloom_core.wire.messages import Exit, Hello


def of_stranger(worker: str) -> Notice:
    """Tell of a worker whose telemetry comes without a hello."""
    return Notice(kind="stranger", text=f"{worker} reports but never said hello", worker=worker)


def of_hello(hello: Hello) -> Notice:
    """Tell of a worker's new life."""
    text = f"{hello.worker} registered on {hello.node}, {hello.state}"
    return Notice(kind="hello", text=text, worker=hello.worker)


def of_refused(hello: Hello) -> Notice:
    """Tell of a worker that may not enter, since too many have."""
    text = f"{hello.worker} may not enter: need at most {MAX_WORKERS} workers in all of a run"
    return Notice(kind="full", text=text, worker=hello.worker)


def of_exit(message: Exit) -> Notice:
    """Tell of the end of a worker's process; an unexpected one is a fault."""
    how = in_words(
        message.status, expected=message.expected, step=message.step, error=message.error
    )
    kind = "exit" if message.expected else "fault"
    return Notice(kind=kind, text=f"{message.worker} {how}", worker=message.worker)


def of_gap(gap: RecordingGap) -> Notice:
    """Tell that the trajectory is written again, and what is missing in it."""
    count = gap.last - gap.first + 1
    first, last = (moment_text(ns // SECOND_NS * SECOND_NS) for ns in (gap.first_ns, gap.last_ns))
    text = f"recording resumed: {count} inputs, {first} to {last}, are not on record: {gap.why}"
    return Notice(kind="recording", text=text)


def of_pause(why: str) -> Notice:
    """Tell that the trajectory cannot be written."""
    text = f"recording paused: {why}; control goes on, and recording once there is room again"
    return Notice(kind="recording", text=text)


def of_wanted(wish: KnobDesired, worker: str) -> Notice:
    """Tell that a worker was given a value that was wanted before it came."""
    since = moment_text(wish.since_ns // SECOND_NS * SECOND_NS)
    text = f"{wish.knob} = {wish.value!r}, wanted since {since}, set on {worker}"
    return Notice(kind="wanted", text=text, worker=worker)


def of_restored(wishes: Sequence[KnobDesired], worker: str) -> Notice:
    """Tell that a job that was restarted has been given what was set before, on all ranks."""
    values = listed(list(map(_set, wishes)))
    return Notice(kind="wanted", text=f"restored after the restart: {values}", worker=worker)


def of_new_job(wishes: Sequence[KnobDesired], worker: str) -> Notice:
    """Tell that a new job is not given what was set in an earlier one, and how it can be."""
    text = (
        "a new job has begun and trains with its own values; set in an earlier job: "
        f"{listed(list(map(_set, wishes)))}; to set them here: torchloom knob take, to drop them: "
        "torchloom knob drop"
    )
    return Notice(kind="new_job", text=text, worker=worker)


def _set(wish: KnobDesired) -> str:
    whose = f" of {wish.worker}" if wish.worker else ""
    since = moment_text(wish.since_ns // SECOND_NS * SECOND_NS)
    return f"{wish.knob} = {wish.value!r}{whose} (set at {since})"


def of_run_end(dismissed: Sequence[str], wishes: Sequence[KnobDesired]) -> Notice:
    """Tell that the run is over, who is sent home, and what is wanted no more."""
    parts = ["the run is over: its last workers ended of their own"]
    if dismissed:
        parts.append(f"dismissed: {listed(dismissed)}")
    if wishes:
        values = [f"{w.knob} = {w.value!r}{f' of {w.worker}' if w.worker else ''}" for w in wishes]
        parts.append(f"wanted no more: {listed(values)}")
    return Notice(kind="run_over", text="; ".join(parts))


def of_crash_loop(text: str, worker: str) -> Notice:
    """Tell that ranks which a launcher starts again end before they attach."""
    return Notice(kind="crash_loop", text=text, worker=worker)


def of_annotation(who: str, text: str) -> Notice:
    """Tell what a person has to say."""
    return Notice(kind="annotate", text=f"{who}: {text}")


def of_fault(fault: Fault) -> Notice:
    """Tell of a fault that a worker or somebody else reported."""
    text = f"{fault.kind} of {fault.worker or f'node {fault.node}'}"
    return Notice(kind="fault", text=text, worker=fault.worker)
