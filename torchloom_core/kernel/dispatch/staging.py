"""Turn an action into stages of commands, or say what stands in its way.

:mod:`torchloom_core.kernel.dispatch.execution` asks; nothing here changes anything.
"""

from collections.abc import Iterable, Set

from torchloom_core.clock import SECOND_NS, moment_text
from torchloom_core.errors import KnobError
from torchloom_core.fleet.state import FleetState
from torchloom_core.suggest import listed, nearest
from torchloom_core.wire.actions import (
    Action,
    Alert,
    ChangeKnob,
    CollectDump,
    CordonNode,
    DrainGroup,
    Migrate,
    PauseRun,
    ResumeRun,
    SaveCheckpoint,
    UncordonNode,
)
from torchloom_core.wire.knobs import agrees, check_value, find_spec, takes, unusual
from torchloom_core.wire.messages import (
    Checkpoint,
    Deed,
    Drain,
    Dump,
    Join,
    KnobSpec,
    KnobValue,
    Pause,
    Resume,
    SetKnob,
)
from torchloom_core.wire.plans import Stage

_LEAVING = frozenset({"gone", "left", "draining"})
_NAMED = 3


class Staging:
    """Knows the fleet and which command each action means for whom.

    ``now_ns`` is the time of the input that the kernel is at; the kernel sets it.
    """

    def __init__(self, fleet: FleetState, stale_after_s: float) -> None:
        self._fleet = fleet
        self._stale_ns = round(stale_after_s * SECOND_NS)
        self.now_ns = 0

    def stages(
        self, action: Action, reserved: Set[str]
    ) -> tuple[tuple[Stage, ...], tuple[str, ...]]:
        """Return the stages, and the stand-by workers that must train after the first."""
        match action:
            case Migrate(group=group):
                standby = self._standby_for(group, reserved)
                stages = (self._stage(standby, Join()), self._stage(self._members(group), Drain()))
                return stages, tuple(self._fleet.hello[row].worker for row in standby)
            case DrainGroup(group=group):
                rows = self._members(group) or self._standby_members(group)
                return (self._stage(rows, Drain()),), ()
            case ChangeKnob(knob=knob, value=value, worker=worker):
                deed = SetKnob(knob=knob, value=check_value(self._spec(knob, worker), value))
                return (self._stage(self._with_knob(knob, worker), deed),), ()
            case SaveCheckpoint(group=wanted):
                return (self._stage(self._savers(wanted), Checkpoint()),), ()
            case PauseRun():
                # Also those that were let go just now: their telemetry says so a moment later.
                return (self._stage(self._in("training", "paused"), Pause()),), ()
            case ResumeRun():
                return (self._stage(self._in("paused"), Resume()),), ()
            case CollectDump(worker=worker):
                return (self._stage([self._fleet.row_of[worker]], Dump()),), ()
            case Alert() | CordonNode() | UncordonNode():
                return (), ()

    def obstacle(self, action: Action, reserved: Set[str]) -> str:
        """Return why the action cannot be carried out at all, or nothing."""
        match action:
            case Migrate(group=group):
                return self._not_training(group) or (
                    "" if self._standby_for(group, reserved) else self._no_standby(group)
                )
            case DrainGroup(group=group):
                return self._drain_obstacle(group, reserved)
            case ChangeKnob():
                return self._knob_obstacle(action)
            case SaveCheckpoint(group=group):
                if group is not None and self._not_training(group):
                    return self._not_training(group)
                whose = "" if group is None else f" of {group}"
                saves = self._savers(group)
                need = "has registered a function to save by loom.on_checkpoint"
                return "" if saves else f"no training worker{whose} {need}"
            case PauseRun():
                return "" if self._in("training", "paused") else "no worker is training"
            case ResumeRun():
                return "" if self._in("paused") else "no worker is paused"
            case CollectDump(worker=worker) | Alert(worker=worker):
                return self._not_present(worker)
            case CordonNode():
                return self._cordon_obstacle(action)
            case UncordonNode(node=node):
                cordoned = self._fleet.cordons.nodes
                hint = nearest(node, cordoned)
                return "" if node in cordoned else f"node {node!r} is not cordoned{hint}"

    # --- who ---

    def _in(self, *states: str) -> list[int]:
        return [row for row, state in enumerate(self._fleet.state) if state in states]

    def _savers(self, group: str | None) -> list[int]:
        hello = self._fleet.hello
        return [
            row
            for row in self._in("training")
            if group in (None, hello[row].group) and "checkpoint" in hello[row].actuators
        ]

    def _members(self, group: str) -> list[int]:
        return self._fleet.groups("training", "paused").get(group, [])

    def _standby_members(self, group: str) -> list[int]:
        return self._fleet.groups("standby").get(group, [])

    def _with_knob(self, knob: str, worker: str | None) -> list[int]:
        """Return the rows whose knob is changed: of one worker, or of all that agree on it."""
        way = takes(self._spec(knob, worker))
        return [
            row
            for row, hello in enumerate(self._fleet.hello)
            if self._fleet.state[row] not in _LEAVING
            and worker in (None, hello.worker)
            and any(spec.name == knob and takes(spec) == way for spec in hello.knobs)
        ]

    def left_out(self, action: ChangeKnob) -> str:
        """Return a clause that names the workers which declare the knob otherwise, or nothing."""
        spec = self._fleet.knob_specs.get(action.knob)
        if action.worker is not None or spec is None:
            return ""
        names = [
            hello.worker
            for row, hello in enumerate(self._fleet.hello)
            if self._fleet.state[row] not in _LEAVING and not agrees(hello.knobs, spec)
        ]
        if not names:
            return ""
        whose = "declares" if len(names) == 1 else "declare"
        return f"not on {listed(names, _NAMED)}, which {whose} it otherwise"

    def _standby_for(self, group: str, reserved: Set[str]) -> list[int]:
        """Return the rows of the best stand-by group: as large, fresh, on other nodes."""
        hello = self._fleet.hello
        members = self._members(group)
        barred = {hello[row].node for row in members} | self._fleet.cordons.nodes
        racks = {hello[row].rack for row in members} - {""}
        fit = [
            (any(hello[row].rack in racks for row in rows), name, rows)
            for name, rows in self._fleet.groups("standby").items()
            if len(rows) == len(members)
            and not any(hello[row].node in barred or hello[row].worker in reserved for row in rows)
            and all(self._fleet.heard_ns_of(row) >= self.now_ns - self._stale_ns for row in rows)
        ]
        return min(fit)[2] if fit else []

    def _stage(self, rows: Iterable[int], deed: Deed) -> Stage:
        hello = self._fleet.hello
        return Stage(
            deed=deed, lives=tuple((hello[row].worker, hello[row].incarnation) for row in rows)
        )

    def unusual(self, action: ChangeKnob, wanted: Iterable[KnobValue]) -> str:
        """Return why a change that is possible may be a slip of the finger, or nothing.

        ``wanted`` are the values that the knob should have already.
        """
        present = [
            values[action.knob]
            for row, values in enumerate(self._fleet.knobs)
            if self._fleet.state[row] != "gone" and action.knob in values
        ]
        return unusual(self._spec(action.knob, action.worker), action.value, [*present, *wanted])

    # --- what stands in the way ---

    def _not_training(self, group: str) -> str:
        if group in self._fleet.groups("training", "paused"):
            return ""
        rows = [row for row, hello in enumerate(self._fleet.hello) if hello.group == group]
        if not rows:
            known = {hello.group for hello in self._fleet.hello}
            return f"no group is called {group!r}{nearest(group, known)}"
        ended = all(map(self._fleet.is_over, rows))
        return f"group {group} {'has ended' if ended else 'is not training'}"

    def _drain_obstacle(self, group: str, reserved: Set[str]) -> str:
        """Refuse to drain who neither trains nor stands by, or is about to join."""
        standby = self._standby_members(group)
        if any(self._fleet.hello[row].worker in reserved for row in standby):
            return f"stand-by {group} is about to join"
        return "" if standby else self._not_training(group)

    def _no_standby(self, group: str) -> str:
        standby = self._fleet.groups("standby")
        if not standby:
            return "no stand-by is left"
        need = "as many workers, on other nodes that are not cordoned, heard of lately"
        return f"no stand-by fits {group}: need {need}"

    def _cordon_obstacle(self, action: CordonNode) -> str:
        """Refuse what would shorten a cordon: a policy must not undo a person's."""
        node = action.node
        if self._fleet.cordons.lasts(node, action.lasts_s, self.now_ns):
            end_ns = self._fleet.cordons.until_ns.get(node)
            if end_ns is None:
                return f"node {node} is cordoned already, until somebody uncordons it"
            end = moment_text(end_ns // SECOND_NS * SECOND_NS)
            return f"node {node} is cordoned already, until {end}"
        known = self.nodes()
        need = "need a node on which a worker sat, or of which a fault was told"
        return "" if node in known else f"{need}, was {node!r}{nearest(node, known)}"

    def nodes(self) -> set[str]:
        """Return every node that is known: workers sat there, or somebody told of a fault."""
        known = {hello.node for hello in self._fleet.hello}
        known.update(faults[0].node for faults in self._fleet.fault_log.faults_of.values())
        return known - {""}

    def _not_present(self, worker: str) -> str:
        row = self._fleet.row_of.get(worker)
        if row is None:
            return f"no worker is called {worker!r}{nearest(worker, self._fleet.row_of)}"
        return f"worker {worker} has ended" if self._fleet.state[row] == "gone" else ""

    def _spec(self, knob: str, worker: str | None) -> KnobSpec:
        if worker is None:
            return find_spec(knob, self._fleet.knob_specs.values())
        return find_spec(knob, self._fleet.hello[self._fleet.row_of[worker]].knobs)

    def _knob_obstacle(self, action: ChangeKnob) -> str:
        if action.worker is not None and self._not_present(action.worker):
            return self._not_present(action.worker)
        try:
            spec = self._spec(action.knob, action.worker)
            check_value(spec, action.value)
        except KnobError as error:
            left_out = self.left_out(action)
            return f"{error}; {left_out}" if left_out else str(error)
        if spec.fence == "run":
            return f"knob {spec.name} is run-fenced, which this version cannot switch"
        if not self._with_knob(action.knob, action.worker):
            return f"knob {action.knob}: {action.worker or 'every worker that has it'} is leaving"
        return ""
