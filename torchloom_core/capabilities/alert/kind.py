"""Alert: report a condition of a worker; the run is not changed."""

from collections.abc import Mapping
from typing import Any

from torchloom_core.capabilities.alert import Alert
from torchloom_core.live.capability import ActionKind, Plan, Run


class AlertKind(ActionKind[Alert]):
    """Done as soon as it is granted, and needs no net gain."""

    message = Alert
    changes_run = False
    skips_price_check = True
    is_alarm = True

    def alert_text(self, action: Alert) -> str:
        """Return the text."""
        return action.text

    def obstacle(self, action: Alert, run: Run) -> str:
        """Refuse an unknown worker, or one that has ended."""
        return run.not_present(action.worker)

    def summary(self, action: Alert, plan: Plan, run: Run) -> str:
        """Return the text of the alert."""
        return action.text

    def describe(self, action: Mapping[str, Any]) -> str:
        """Return ``alert on g0-0: too hot``."""
        return f"alert on {action['worker']}: {action['text']}"


KIND = AlertKind()
