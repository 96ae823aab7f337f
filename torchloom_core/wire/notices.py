"""The texts of the kernel's notices."""

from collections.abc import Sequence

from torchloom_core.floor.clock import SECOND_NS, moment_text
from torchloom_core.floor.plain_text import plain_line
from torchloom_core.floor.suggest import listed
from torchloom_core.wire.decisions import KnobDesired, Notice
from torchloom_core.wire.endings import in_words
from torchloom_core.wire.events import DeliveryStatus, Fault, Noticed, RecordingGap
from torchloom_core.wire.limits import MAX_WORKERS
from torchloom_core.wire.messages import Exit, Hello
from torchloom_core.wire.placement import TRAINER

EFFECTOR = "effector"
"""The kind of notices about effectors."""

_NAMED = 20
"""How many workers have a notice each."""


def of_unregistered(workers: Sequence[str]) -> list[Notice]:
    """Report telemetry of workers that have not registered: of each, and of many the number."""
    found = [
        Notice(kind="stranger", text=f"{w} sends telemetry but has not registered", worker=w)
        for w in workers[:_NAMED]
    ]
    if more := len(workers) - len(found):
        text = f"{more} more workers send telemetry but have not registered"
        found.append(Notice(kind="stranger", text=text))
    return found


def of_hello(hello: Hello) -> Notice:
    """Report a new incarnation of a worker."""
    role = "" if hello.role == TRAINER else f", role {hello.role}"
    text = f"{hello.worker} registered on {hello.node}, {hello.state}{role}"
    return Notice(kind="hello", text=text, worker=hello.worker)


def of_refused(hello: Hello) -> Notice:
    """Report a worker that is refused because the run is full."""
    text = f"{hello.worker} was refused: a run may have at most {MAX_WORKERS} workers in total"
    return Notice(kind="full", text=text, worker=hello.worker)


def of_exit(message: Exit) -> Notice:
    """Report that a worker's process ended; an unexpected end is a fault."""
    how = in_words(
        message.status, expected=message.expected, step=message.step, error=message.error
    )
    kind = "exit" if message.expected else "fault"
    return Notice(kind=kind, text=f"{message.worker} {how}", worker=message.worker)


def of_gap(gap: RecordingGap) -> Notice:
    """Report that recording has resumed, and which inputs are missing."""
    count = gap.last - gap.first + 1
    first, last = (moment_text(ns // SECOND_NS * SECOND_NS) for ns in (gap.first_ns, gap.last_ns))
    text = f"recording resumed: {count} inputs, {first} to {last}, are missing: {gap.why}"
    return Notice(kind="recording", text=text)


def of_noticed(noticed: Noticed) -> Notice:
    """Return the notice of what the Weaver itself has noticed."""
    return Notice(kind=noticed.kind, text=noticed.text, worker=noticed.worker)


def of_recording_pause(why: str) -> Notice:
    """Report that recording is paused."""
    text = f"recording paused: {why}; control continues, recording resumes once it can be written"
    return Notice(kind="recording", text=text)


def of_delivery(status: DeliveryStatus) -> Notice:
    """Report that an effector fails, or works again."""
    text = f"effector {status.effector} works again"
    if status.result not in ("delivered", "dry_run"):
        result = status.result.replace("_", " ")
        text = f"effector {status.effector}: {status.delivery} {result}: {status.detail}"
    return Notice(kind=EFFECTOR, text=text)


def of_desired(desired: KnobDesired, worker: str) -> Notice:
    """Report a desired value that was set on a worker that joined later."""
    since = moment_text(desired.since_ns // SECOND_NS * SECOND_NS)
    text = f"{desired.knob} = {desired.value!r}, desired since {since}, set on {worker}"
    return Notice(kind="wanted", text=text, worker=worker)


def of_restored(desired: Sequence[KnobDesired], worker: str) -> Notice:
    """Report values that were restored on all ranks after a restart of the job."""
    values = listed(list(map(_set, desired)))
    return Notice(kind="wanted", text=f"restored after the restart: {values}", worker=worker)


def of_new_job(desired: Sequence[KnobDesired], worker: str) -> Notice:
    """Report that a new job has not got the values of an earlier one, and how to set them."""
    text = (
        "a new job has started with its own knob values; set in an earlier job: "
        f"{listed(list(map(_set, desired)))}; to apply them: torchloom knob take, to drop them: "
        "torchloom knob drop"
    )
    return Notice(kind="new_job", text=text, worker=worker)


def _set(desired: KnobDesired) -> str:
    since = moment_text(desired.since_ns // SECOND_NS * SECOND_NS)
    return f"{desired.knob} = {desired.value!r}{desired.whose} (set at {since})"


def of_run_end(dismissed: Sequence[str], desired: Sequence[KnobDesired]) -> Notice:
    """Report that the run is over, which standbys are drained, and which values dropped."""
    parts = ["the run is over: its last workers ended normally"]
    if dismissed:
        parts.append(f"standbys drained: {listed(dismissed)}")
    if desired:
        values = [f"{w.knob} = {w.value!r}{w.whose}" for w in desired]
        parts.append(f"desired values dropped: {listed(values)}")
    return Notice(kind="run_over", text="; ".join(parts))


def of_fault(fault: Fault, what: str = "") -> Notice:
    """Report a fault of a worker or node; ``what`` is known of it beside its kind."""
    text = f"{fault.kind} of {fault.worker or f'node {fault.node}'}"
    if what:
        text += f": {plain_line(what)}"
    return Notice(kind="fault", text=text, worker=fault.worker)
