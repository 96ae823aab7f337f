"""The run as an action finds it: who trains, who stands by, what is under way and wanted."""

from collections.abc import Iterable

from torchloom_core.clock import SECOND_NS
from torchloom_core.dispatch.commands import Commands
from torchloom_core.dispatch.under_way import UnderWay
from torchloom_core.fleet.absent import why_not_present, why_not_training
from torchloom_core.fleet.desired_knobs import DesiredKnobs
from torchloom_core.fleet.guards import Guards
from torchloom_core.fleet.held_standbys import HeldStandbys
from torchloom_core.fleet.launches import Launches
from torchloom_core.fleet.run_pause import RunPause
from torchloom_core.fleet.state import FleetState
from torchloom_core.fleet.steering import Steering
from torchloom_core.wire.events import Notice, Output
from torchloom_core.wire.knobs import find_spec
from torchloom_core.wire.messages import KnobSpec, KnobValue, Operation, WriteLog
from torchloom_core.wire.plans import Stage

NAMED = 3
"""How many workers a message names."""

_LEAVING = frozenset({"gone", "left", "draining"})


class Run:
    """What the kinds of action may look at, and what they have kept.

    Attributes
    ----------
    now_ns : int
        Time of the input that the kernel is at; the kernel sets it.
    stale_ns : int
        After how long a worker that says nothing is silent.
    """

    def __init__(
        self,
        fleet: FleetState,
        commands: Commands,
        guards: Guards,
        stale_after_s: float,
        steering: Steering,
    ) -> None:
        self.fleet = fleet
        self.commands = commands
        self.guards = guards
        self.plans = UnderWay()
        self.pauses = RunPause(fleet, stale_after_s)
        self.desired = DesiredKnobs()
        self.launches = Launches(fleet, self.desired, stale_after_s)
        self.steering = steering
        self.held_standbys = HeldStandbys(fleet, steering)
        self.stale_ns = round(stale_after_s * SECOND_NS)
        self.now_ns = 0

    # --- who ---

    def rows_in(self, *states: str) -> list[int]:
        """Return the rows of the workers in one of the states."""
        return [row for row, state in enumerate(self.fleet.state) if state in states]

    def able(self, rows: Iterable[int], verb: str) -> list[int]:
        """Return the rows of those who obey the verb; an older Threadlet knows fewer."""
        return [row for row in rows if verb in self.fleet.hello[row].actuators]

    def reachable(self, rows: Iterable[int]) -> list[int]:
        """Return the rows of those that something was heard of lately."""
        return [row for row in rows if self.fleet.heard_ns_of(row) >= self.now_ns - self.stale_ns]

    def voters(self) -> list[int]:
        """Return the rows of those that train and agree on what all do at one step."""
        return self.able(self.rows_in("training", "paused"), "fenced_change")

    def members(self, group: str) -> list[int]:
        """Return the rows of a group that trains."""
        return self.fleet.groups("training", "paused").get(group, [])

    def standby_members(self, group: str) -> list[int]:
        """Return the rows of a group that stands by."""
        return self.fleet.groups("standby").get(group, [])

    def stays(self, row: int) -> bool:
        """Say whether the worker is neither gone nor on its way out."""
        return self.fleet.state[row] not in _LEAVING

    def training_groups(self) -> set[str]:
        """Return the replica groups that train."""
        return set(self.fleet.groups("training", "paused"))

    def spec(self, knob: str) -> KnobSpec:
        """Return what the run's workers say of a knob; raises KnobError where none has it."""
        return find_spec(knob, self.fleet.knob_specs.values())

    def in_use(self, knob: str) -> list[KnobValue]:
        """Return the values that a knob has on whichever worker, or should have."""
        present = [
            values[knob]
            for row, values in enumerate(self.fleet.knobs)
            if self.fleet.state[row] != "gone" and knob in values
        ]
        return [*present, *self.desired.values(knob)]

    # --- what workers are told ---

    def stage(self, rows: Iterable[int], operation: Operation) -> Stage:
        """Return the stage that tells the workers of these rows to do the operation."""
        hellos = [self.fleet.hello[row] for row in rows]
        return Stage(
            operation=operation, incarnations=tuple((h.worker, h.incarnation) for h in hellos)
        )

    def issue(self, stage: Stage, cause: str) -> list[Output]:
        """Issue the stage's commands."""
        outputs: list[Output] = []
        for worker, incarnation in stage.incarnations:
            outputs += self.commands.issue(worker, incarnation, stage.operation, cause, self.now_ns)
        return outputs

    def notify(self, notice: Notice, cause: str) -> list[Output]:
        """Tell people of a worker, also in its trainer's own log."""
        able = self.able([self.fleet.row_of[notice.worker]], "tell")
        return [notice, *self.issue(self.stage(able, WriteLog(text=notice.text)), cause)]

    # --- obstacles that several kinds meet ---

    def not_training(self, group: str) -> str:
        """Return why the group cannot be acted on as one that trains, or nothing."""
        return why_not_training(self.fleet, group)

    def not_present(self, worker: str) -> str:
        """Return why the worker cannot be acted on, or nothing."""
        return why_not_present(self.fleet, worker)
