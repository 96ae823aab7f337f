"""Alert: tell people about a worker; nothing is changed."""

from collections.abc import Mapping
from typing import Any

from torchloom_core.kernel.actions.kind import ActionKind
from torchloom_core.kernel.actions.run import Run
from torchloom_core.wire.actions import Alert
from torchloom_core.wire.plans import Plan


class AlertKind(ActionKind[Alert]):
    """It is its own outcome, and need not be worth anything."""

    message = Alert
    changes_run = False
    skips_price_check = True
    is_alarm = True

    def obstacle(self, action: Alert, run: Run) -> str:
        """Refuse a worker that is not there."""
        return run.not_present(action.worker)

    def summary(self, action: Alert, plan: Plan, run: Run) -> str:
        """Return what people are told."""
        return action.text

    def describe(self, action: Mapping[str, Any]) -> str:
        """Return ``alert on g0-0: too hot``."""
        return f"alert on {action['worker']}: {action['text']}"
