"""Dump: collect a worker's stacks and, where there is one, the Flight Recorder's dump."""

from torchloom_core.capabilities.dump import CollectDump
from torchloom_core.live.capability import ActionKind, Plan, Run, Stages
from torchloom_core.wire.operations import Dump


class DumpKind(ActionKind[CollectDump]):
    """The dump arrives as a note in the trajectory."""

    message = CollectDump
    operations = (Dump,)
    changes_run = False
    is_alarm = True

    def obstacle(self, action: CollectDump, run: Run) -> str:
        """Refuse an unknown worker, or one that has ended."""
        return run.not_present(action.worker)

    def stages(self, action: CollectDump, run: Run) -> Stages:
        """Return the one command."""
        return Stages((run.stage([run.fleet.row_of[action.worker]], Dump()),))

    def summary(self, action: CollectDump, plan: Plan, run: Run) -> str:
        """Return how to show the dump."""
        worker = action.worker
        show = f"torchloom trajectory show --kind note --worker {worker} --json"
        return f"dump of {worker} recorded, to show it: {show}"


KIND = DumpKind()
