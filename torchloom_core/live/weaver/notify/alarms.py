"""Which of the Weaver's inputs and outputs are worth a message to a person, and their cause."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torchloom_core.config.notify import Event
from torchloom_core.live.kernel.actions.kinds import kind_of, target_of
from torchloom_core.wire.actions import name_of
from torchloom_core.wire.decisions import Notice, Outcome, Output, PolicyFailed, Verdict
from torchloom_core.wire.events import Input, PredictorFailed, RecordingGap
from torchloom_core.wire.requests import Request, ResumeActions, StopActions

_NOTICES: dict[str, Event] = {"fault": "fault", "crash_loop": "crash_loop"}


class Alarm(NamedTuple):
    """One event for a person; those of one ``cause`` become one message."""

    event: Event
    cause: str
    text: str


def alarms_of(message: Input, outputs: Sequence[Output]) -> Iterator[Alarm]:
    """Yield the alarms of an input and its outputs."""
    match message:
        case Request(want=StopActions(), by=by):
            yield Alarm("kill_switch", "kill_switch", f"{by} stopped all actions")
        case Request(want=ResumeActions(), by=by):
            yield Alarm("kill_switch", "kill_switch", f"{by} allowed actions again")
        case PredictorFailed(predictor=name, rule=rule, detail=detail):
            yield Alarm("quarantine", f"quarantine {name}", f"{name}: {rule}: {detail}")
        case RecordingGap(why=why):
            yield Alarm("recording", "recording", f"recording resumed; it was paused: {why}")
    for output in outputs:
        if alarm := _of_output(output):
            yield alarm


def _of_output(output: Output) -> Alarm | None:
    match output:
        case Outcome(policy=policy, action=action) if text := kind_of(action).alert_text(action):
            return Alarm("alert", f"alert of {policy}", text)
        case Outcome(policy=policy, action=action, result=result, detail=detail) if (
            result != "done"
        ):
            name = name_of(action)
            text = f"{name} {target_of(action)} of {policy} {result}: {detail}"
            return Alarm("failed_action", f"failed {name}", text)
        case Verdict(rule="breaker", policy=policy, action=action, reason=reason):
            return Alarm("breaker", "breaker", f"{name_of(action)} of {policy} denied: {reason}")
        case PolicyFailed(policy=name, rule=rule, detail=detail):
            return Alarm("quarantine", f"quarantine {name}", f"{name}: {rule}: {detail}")
        case Notice(kind=kind, text=text) if kind in _NOTICES:
            return Alarm(_NOTICES[kind], kind, text)
    return None
