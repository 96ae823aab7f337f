"""The part in the Weaver: what prevents the action, its commands, its summary."""

from torchloom_core.live.capability import ActionKind, Plan, Run, Stages

from . import Example, RequestExample


class ExampleKind(ActionKind[RequestExample]):
    """See ActionKind for what else it can decide."""

    message = RequestExample
    operations = (Example,)

    def obstacle(self, action: RequestExample, run: Run) -> str:
        """Return why it is impossible, in one line; "" if it is possible."""
        if problem := run.not_present(action.worker):
            return problem
        need = 'need loom.on("example", function) in its script'
        return "" if _rows(action, run) else f"worker {action.worker} does not offer it: {need}"

    def stages(self, action: RequestExample, run: Run) -> Stages:
        """Return the one command."""
        return Stages((run.stage(_rows(action, run), Example()),))

    def summary(self, action: RequestExample, plan: Plan, run: Run) -> str:
        """Return what was done, in one line."""
        return f"done by {action.worker}"


def _rows(action: RequestExample, run: Run) -> list[int]:
    return run.able([run.fleet.row_of[action.worker]], "example")


KIND = ExampleKind()
