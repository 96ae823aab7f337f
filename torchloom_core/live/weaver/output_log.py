"""Which of the kernel's outputs the Weaver logs, and at which level."""

import logging

import msgspec

from torchloom_core.floor.plain_text import RateLimitedLog
from torchloom_core.live.kernel.actions.kinds import kind_of
from torchloom_core.live.trajectory.summaries import summarise
from torchloom_core.wire.decisions import (
    CordonOver,
    Notice,
    Outcome,
    Output,
    PolicyFailed,
    Verdict,
)

_log = logging.getLogger(__name__)


def log_output(output: Output, limited: RateLimitedLog) -> None:
    """Log an output as one line; notices of strangers, repeated at each tick, by ``limited``."""
    match output:
        case Notice(kind="stranger", worker=worker, text=text):
            limited.add(worker, f"notice: {text}")
            return
        case (
            Notice(kind="hello" | "exit" | "wanted" | "run_over" | "lighthouse")
            | CordonOver()
            | Verdict()
        ):
            level = logging.INFO
        case Notice() | PolicyFailed():
            level = logging.WARNING
        case Outcome(action=action) if kind_of(action).alert_text(action):
            level = logging.WARNING
        case Outcome(result=result):
            level = logging.INFO if result == "done" else logging.WARNING
        case _:
            return
    kind = str(output.__struct_config__.tag)
    _log.log(level, "%s: %s", kind, summarise(kind, msgspec.to_builtins(output)))
