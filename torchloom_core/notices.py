"""What the kernel tells people beside its decisions, in words."""

from torchloom_core.decisions import Notice
from torchloom_core.fleet.fault_log import Fault
from torchloom_core.messages import Exit, Hello


def of_stranger(worker: str) -> Notice:
    """Tell of a worker whose telemetry comes without a hello."""
    return Notice(kind="stranger", text=f"{worker} reports but never said hello", worker=worker)


def of_hello(hello: Hello) -> Notice:
    """Tell of a worker's new life."""
    text = f"{hello.worker} registered on {hello.node}, {hello.state}"
    return Notice(kind="hello", text=text, worker=hello.worker)


def of_exit(message: Exit) -> Notice:
    """Tell of the end of a worker's process; an unexpected one is a fault."""
    how = "as expected" if message.expected else f"unexpectedly, status {message.status}"
    text = f"{message.worker} ended {how} at step {message.step}"
    if message.error:
        text = f"{text}: {message.error}"
    kind = "exit" if message.expected else "fault"
    return Notice(kind=kind, text=text, worker=message.worker)


def of_fault(fault: Fault) -> Notice:
    """Tell of a fault that a worker or somebody else reported."""
    text = f"{fault.kind} of {fault.worker or f'node {fault.node}'}"
    return Notice(kind="fault", text=text, worker=fault.worker)
