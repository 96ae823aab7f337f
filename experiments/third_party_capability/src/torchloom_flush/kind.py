"""Flush in the Weaver: what prevents it, its command, its summary."""

from torchloom_core.live.capability import ActionKind, Plan, Run, Stages, workers_text

from torchloom_flush import Flush, FlushCheckpoints


class FlushKind(ActionKind[FlushCheckpoints]):
    """Sent to the training workers whose script has registered a function for it."""

    message = FlushCheckpoints
    operations = (Flush,)

    def target(self, action: FlushCheckpoints, /) -> str:
        """Return the one target of all flushes."""
        return "flush"

    def obstacle(self, action: FlushCheckpoints, run: Run) -> str:
        """Refuse where no training worker can flush."""
        if action.group is not None and (problem := run.not_training(action.group)):
            return problem
        need = 'need loom.on("flush", function) in its script'
        return "" if _rows(action, run) else f"no training worker can flush: {need}"

    def stages(self, action: FlushCheckpoints, run: Run) -> Stages:
        """Return the one command for all of them."""
        return Stages((run.stage(_rows(action, run), Flush()),))

    def summary(self, action: FlushCheckpoints, plan: Plan, run: Run) -> str:
        """Return how many workers have nothing left to write."""
        return f"checkpoints of {workers_text(plan)} on disk"


def _rows(action: FlushCheckpoints, run: Run) -> list[int]:
    rows = run.able(run.rows_in("training"), "flush")
    return [row for row in rows if action.group in (None, run.fleet.hello[row].group)]


KIND = FlushKind()
