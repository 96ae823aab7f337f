"""The kind of the actions in a record whose capability is not installed any more."""

from torchloom_core.live.kernel.actions.kind import ActionKind
from torchloom_core.live.kernel.actions.run import Run
from torchloom_core.wire.actions import Action, name_of
from torchloom_core.wire.capabilities import Uninstalled
from torchloom_core.wire.plans import Plan


class UninstalledKind(ActionKind[Action]):
    """Ends its plans as failed, and begins none."""

    message = Uninstalled

    def obstacle(self, action: Action, run: Run) -> str:
        """Return that it is not installed."""
        return f"capability {name_of(action)} is not installed"

    def trouble(self, plan: Plan, run: Run) -> str:
        """Return that it is not installed."""
        return self.obstacle(plan.action, run)

    def summary(self, action: Action, plan: Plan, run: Run) -> str:
        """Return that it is not installed."""
        return self.obstacle(action, run)


UNINSTALLED = UninstalledKind()
