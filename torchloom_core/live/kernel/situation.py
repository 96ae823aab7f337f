"""The run as the safety limits see it."""

from collections.abc import Set

from torchloom_core.live.kernel.actions.kinds import kind_of
from torchloom_core.live.kernel.actions.run import Run
from torchloom_core.wire.actions import Action, new_values


class Situation:
    """What the safety limits need to know of the run at this moment."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    def stopped(self) -> bool:
        """Whether the kill switch is on."""
        return self._run.switch.stopped

    def obstacle(self, action: Action) -> str:
        """Return why the action cannot be carried out, or an empty string."""
        return kind_of(action).obstacle(action, self._run)

    def in_progress(self, target: str) -> str:
        """Return the verdict whose plan works on the target, or an empty string."""
        plan = self._run.plans.table.get(self._run.plans.on(target))
        return plan.verdict if plan and not plan.called_off else ""

    def training_groups(self) -> Set[str]:
        """Return the replica groups that train."""
        return self._run.training_groups()

    def role_of(self, group: str) -> str:
        """Return the role of a replica group, an empty string if nobody is known of it."""
        return self._run.fleet.role_of(group)

    def is_only_role(self, role: str) -> bool:
        """Return whether all workers of the run have this role."""
        return self._run.fleet.is_only_role(role)

    def role_of_action(self, action: Action) -> str:
        """Return the role that an action concerns: named, of its group or worker; "": none."""
        run, subject = self._run, kind_of(action).subject(action)
        if named := getattr(action, "role", "") or "":
            return str(named)
        if subject.group:
            return self.role_of(subject.group)
        row = run.fleet.row_of.get(subject.worker)
        if row is not None:
            return run.fleet.hello[row].role
        values = new_values(action)
        return run.role_of_knobs(values) if values else ""

    def nodes(self) -> set[str]:
        """Return all known nodes."""
        return self._run.fleet.nodes()

    def cordoned(self) -> Set[str]:
        """Return the cordoned nodes."""
        return self._run.fleet.cordons.nodes

    def groups_in_motion(self) -> set[str]:
        """Return the replica groups that some plan moves away."""
        plans = self._run.plans.table.values()
        return {group for plan in plans for group in kind_of(plan.action).moves(plan.action)}
