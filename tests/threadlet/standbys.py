"""A worker without a Weaver, and why it refuses an operation."""

from torchloom_core.wire.commands import Command
from torchloom_threadlet.identity import identify
from torchloom_threadlet.trainer.standby_tasks import standby_tasks_of
from torchloom_threadlet.trainer.worker import Worker


def worker_with(landscape=None, preview=None, standby=True):
    """Return a worker whose script offers these standby tasks."""
    tasks = standby_tasks_of(landscape, preview)
    return Worker(identify(standby=standby), None, "", held=False, standby_tasks=tasks)


def command(operation):
    return Command(
        id="c1", run="run", worker="g0-0", incarnation=1, epoch=1, issued_ns=0,
        deadline_ns=2**62, do=operation,
    )  # fmt: skip


def refusal(worker, operation, state):
    worker.state = state
    return worker.operations.refusal(command(operation))
