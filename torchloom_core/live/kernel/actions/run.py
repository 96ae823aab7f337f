"""The run as the kinds of action see it: workers, plans under way, desired values."""

from collections.abc import Collection, Iterable, Set

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.suggest import listed, nearest
from torchloom_core.live.dispatch.commands import Commands
from torchloom_core.live.dispatch.under_way import UnderWay
from torchloom_core.live.fleet.desired_knobs import DesiredKnobs
from torchloom_core.live.fleet.guards import Guards
from torchloom_core.live.fleet.held_standbys import HeldStandbys
from torchloom_core.live.fleet.launches import Launches
from torchloom_core.live.fleet.pauses import Pauses
from torchloom_core.live.fleet.state import FleetState
from torchloom_core.live.fleet.steering import Steering
from torchloom_core.live.fleet.suspensions import Suspensions
from torchloom_core.live.kernel.kill_switch import KillSwitch
from torchloom_core.wire.decisions import Notice, Output
from torchloom_core.wire.knobs import find_spec
from torchloom_core.wire.limits import KnobValue
from torchloom_core.wire.messages import KnobSpec
from torchloom_core.wire.operations import Operation, WriteLog
from torchloom_core.wire.placement import TRAINER
from torchloom_core.wire.plans import Stage

NAMED = 3
"""How many workers a message names at most."""

PAUSING = "run"
"""The target of a pause; a resume has another one, so that it can end an unfinished pause.

That of a role's pause has the role behind a colon.
"""

SUSPENDING = "suspension"
"""The target of a suspension."""

RESUMING = "pause"
"""The target of a resume, of a pause or a suspension."""


def of_role(target: str, role: str) -> str:
    """Return the target of an action on one role of the run, on all for ""."""
    return f"{target}:{role}" if role else target


_NONE = "no worker is training"
_LEAVING = frozenset({"gone", "left", "draining"})


class Run:
    """What the kinds of action read, and the state that they share.

    Attributes
    ----------
    now_ns : int
        Time of the present input; the kernel sets it.
    stale_ns : int
        A worker without a heartbeat for longer is unreachable, nanoseconds.
    """

    def __init__(
        self,
        fleet: FleetState,
        commands: Commands,
        guards: Guards,
        stale_after_s: float,
        steering: Steering,
        switch: KillSwitch,
    ) -> None:
        self.fleet = fleet
        self.commands = commands
        self.guards = guards
        self.switch = switch
        self.plans = UnderWay()
        self.pauses = Pauses(fleet, stale_after_s)
        self.suspensions = Suspensions(fleet)
        self.desired = DesiredKnobs()
        self.launches = Launches(fleet, self.desired, stale_after_s)
        self.steering = steering
        self.held_standbys = HeldStandbys(fleet, steering)
        self.stale_ns = round(stale_after_s * SECOND_NS)
        self.now_ns = 0

    # --- workers ---

    def rows_in(self, *states: str) -> list[int]:
        """Return the rows of the workers in one of the states."""
        return self.fleet.standing.rows_in(*states)

    def able(self, rows: Iterable[int], verb: str) -> list[int]:
        """Return those of the rows whose Threadlet supports the verb."""
        return [row for row in rows if verb in self.fleet.hello[row].actuators]

    def reachable(self, rows: Iterable[int]) -> list[int]:
        """Return those of the rows that are not unreachable."""
        return [row for row in rows if not self.fleet.times.is_stale(row, self.now_ns)]

    def in_training(self, roles: Set[str] = frozenset()) -> list[int]:
        """Return the rows of the training workers of these roles, or of all."""
        rows, hello = self.rows_in("training", "paused"), self.fleet.hello
        return [row for row in rows if not roles or hello[row].role in roles]

    def voters(self, roles: Set[str] = frozenset()) -> list[int]:
        """Return the rows of :meth:`in_training` that can agree on a step."""
        return self.able(self.in_training(roles), "fenced_change")

    def with_role(self, rows: Iterable[int], role: str) -> list[int]:
        """Return those of the rows whose workers have the role; all for ""."""
        return [row for row in rows if role in ("", self.fleet.hello[row].role)]

    def no_role(self, role: str) -> str:
        """Return that no worker of the role trains, or an empty string."""
        if self.with_role(self.in_training(), role):
            return ""
        roles = {self.fleet.hello[row].role for row in self.in_training()}
        return f"no worker of role {role} is training{nearest(role, roles)}" if role else _NONE

    def roles_of(self, groups: Collection[str]) -> set[str]:
        """Return the roles of the present workers of these groups."""
        fleet = self.fleet
        rows = (row for group in groups for row in fleet.standing.rows_of(group))
        return {fleet.hello[row].role for row in rows if not fleet.is_over(row)}

    def members(self, group: str) -> list[int]:
        """Return the rows of a group that trains."""
        fleet = self.fleet
        rows = fleet.standing.rows_of(group) if group in self.training_groups() else []
        return [row for row in rows if not fleet.is_over(row)]

    def standby_members(self, group: str) -> list[int]:
        """Return the rows of a standby group."""
        return self.fleet.standing.groups("standby").get(group, [])

    def stays(self, row: int) -> bool:
        """Return whether the worker is neither gone nor leaving."""
        return self.fleet.state[row] not in _LEAVING

    def training_groups(self) -> Set[str]:
        """Return the replica groups that train."""
        return self.fleet.standing.training

    def role_of_knobs(self, knobs: Collection[str]) -> str:
        """Return the role whose workers have the knobs: that of the trainers if several do."""
        roles = self.fleet.roles_with(knobs)
        return roles[0] if roles and TRAINER not in roles else TRAINER

    def ambiguous(self, knobs: Collection[str]) -> str:
        """Return that several roles have the knobs, so that one is to be named, or ""."""
        roles = self.fleet.roles_with(knobs)
        if len(roles) < 2:
            return ""
        return f"the roles {listed(roles)} have knob {', '.join(knobs)}: name one with --role"

    def named(self, role: str) -> str:
        """Return the role as an action has to name it: "" in a run that has no other."""
        return role if len(self.fleet.roles) > 1 else ""

    def spec(self, knob: str, role: str) -> KnobSpec:
        """Return a knob's specification in a role; KnobError if no worker of it has the knob."""
        return find_spec(knob, self.fleet.specs_of(role).values())

    def in_use(self, knob: str, role: str) -> list[KnobValue]:
        """Return the present values of a knob on all workers of a role, and its desired ones."""
        present = [
            values[knob]
            for row, values in enumerate(self.fleet.knobs)
            if self.fleet.state[row] != "gone"
            and knob in values
            and self.fleet.hello[row].role == role
        ]
        return [*present, *self.desired.values(knob, role)]

    def works_on(self, target: str) -> set[str]:
        """Return the roles on which a plan with this target works; "": all of the run."""
        return {role for role in ("", *self.fleet.roles) if self.plans.on(of_role(target, role))}

    def changes_pause(self, role: str) -> str:
        """Return that workers of a role, of any for "", are being paused or resumed; or ""."""
        for target, what in (
            (PAUSING, "paused"),
            (RESUMING, "resumed"),
            (SUSPENDING, "suspended"),
        ):
            for one in self.works_on(target):
                if not (one and role) or one == role:
                    return f"{f'role {one}' if one else 'the run'} is being {what}"
        return ""

    # --- commands ---

    def stage(self, rows: Iterable[int], operation: Operation) -> Stage:
        """Return the stage that sends the operation to the workers of these rows."""
        hellos = [self.fleet.hello[row] for row in rows]
        incarnations = tuple((hello.worker, hello.incarnation) for hello in hellos)
        return Stage(operation=operation, incarnations=incarnations)

    def issue(self, stage: Stage, cause: str) -> list[Output]:
        """Issue the stage's commands."""
        outputs: list[Output] = []
        for worker, incarnation in stage.incarnations:
            outputs += self.commands.issue(worker, incarnation, stage.operation, cause, self.now_ns)
        return outputs

    def notify(self, notice: Notice, cause: str) -> list[Output]:
        """Return a notice of a worker and the command that writes it to the trainer's log."""
        able = self.able([self.fleet.row_of[notice.worker]], "write_log")
        return [notice, *self.issue(self.stage(able, WriteLog(text=notice.text)), cause)]

    # --- obstacles that several kinds meet ---

    def not_training(self, group: str) -> str:
        """Return why the group is not a training group, or an empty string."""
        if group in self.training_groups():
            return ""
        rows = self.fleet.standing.rows_of(group)
        if not rows:
            names = {hello.group for hello in self.fleet.hello}
            return f"no group is called {group!r}{nearest(group, names)}"
        ended = all(map(self.fleet.is_over, rows))
        return f"group {group} {'has ended' if ended else 'is not training'}"

    def not_present(self, worker: str) -> str:
        """Return why the worker cannot be acted on, or an empty string."""
        row = self.fleet.row_of.get(worker)
        if row is None:
            return f"no worker is called {worker!r}{nearest(worker, self.fleet.row_of)}"
        return f"worker {worker} has ended" if self.fleet.state[row] == "gone" else ""
