"""Carry out what was granted: plans of commands, stage by stage, and how they end.

The kernel starts a plan for each granted verdict and advances all of them at every tick and
ack. It is also the :class:`~torchloom_core.kernel.arbiter.rails.Situation` that the rails look at.
"""

from collections.abc import Iterable, Set

import msgspec

from torchloom_core.clock import SECOND_NS
from torchloom_core.fleet.state import FleetState
from torchloom_core.kept import KeptTable
from torchloom_core.kernel.dispatch.commands import Ledger
from torchloom_core.kernel.dispatch.desired_knobs import DesiredKnobs
from torchloom_core.kernel.dispatch.pause_hold import PauseHold
from torchloom_core.kernel.dispatch.staging import Staging
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
    target_of,
)
from torchloom_core.wire.events import Outcome, Output, Verdict
from torchloom_core.wire.messages import RECONCILE, Command, Drain, Hello
from torchloom_core.wire.plans import Plan

_NAMED = 20
"""How many commands that were not applied an outcome names."""

_WHY_CHARACTERS = 300

_PAUSE_LASTS = "they go on by themselves once they hear nothing of this Weaver for 3 s"


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """The kill switch is on."""


class Operations:
    """The plans under way, and what they keep busy."""

    def __init__(
        self,
        fleet: FleetState,
        ledger: Ledger,
        staging: Staging,
        pauses: PauseHold,
        deadline_s: float,
    ) -> None:
        self._fleet = fleet
        self._ledger = ledger
        self._staging = staging
        self._pauses = pauses
        self._patience_ns = round(2 * deadline_s * SECOND_NS)
        self._pending: dict[str, set[str]] = {}
        self._acts_on: dict[str, str] = {}
        self._waiting: dict[str, None] = {}
        self.plans: KeptTable[Plan] = KeptTable("plan")
        self.switch: KeptTable[Stopped] = KeptTable("actions")

    @property
    def stopped(self) -> bool:
        """Whether the kill switch is on."""
        return "stopped" in self.switch

    def stop(self) -> None:
        """Throw the kill switch."""
        self.switch["stopped"] = Stopped()

    def resume(self) -> None:
        """Release the kill switch."""
        self.switch.pop("stopped", None)

    # --- what the rails ask ---

    def obstacle(self, action: Action) -> str:
        """Return why the action cannot be carried out at all, or nothing."""
        match action:
            case PauseRun() if self._pauses.verdict:
                return "the run is paused already; resume it first"
            case PauseRun() if target_of(ResumeRun()) in self._acts_on:
                return "the run is just being resumed"
            case ResumeRun() if self._pauses.going_on:
                return ""
        return self._staging.obstacle(action, self._reserved(action))

    def in_progress(self, target: str) -> str:
        """Return the verdict whose plan works on the target, or nothing."""
        return self._acts_on.get(target, "")

    def training_groups(self) -> set[str]:
        """Return the replica groups that train."""
        return set(self._fleet.groups("training", "paused"))

    def nodes(self) -> set[str]:
        """Return every node that is known."""
        return self._staging.nodes()

    def cordoned(self) -> Set[str]:
        """Return the nodes on which nobody new is put."""
        return self._fleet.cordons.nodes

    def groups_in_motion(self) -> set[str]:
        """Return the replica groups that some plan moves away."""
        return {
            plan.action.group
            for plan in self.plans.values()
            if isinstance(plan.action, DrainGroup | Migrate)
        }

    def _reserved(self, action: Action) -> set[str]:
        """Return stand-by workers that some plan has taken already, or that are being drained.

        A drain that was taken back may have reached its worker: it counts until that is known.
        """
        reserved = {worker for plan in self.plans.values() for worker in plan.await_training}
        if isinstance(action, Migrate):
            commands = (flight.command for flight in self._ledger.flights.values())
            reserved.update(c.worker for c in commands if isinstance(c.do, Drain))
        return reserved

    # --- the life of a plan ---

    def start(self, verdict: Verdict, now_ns: int) -> list[Output]:
        """Make a plan of a granted verdict and issue its first stage.

        What needs no worker is done at once.
        """
        reserved = self._reserved(verdict.action)
        stages, await_training = self._staging.stages(verdict.action, reserved)
        plan = Plan(
            verdict=verdict.proposal,
            policy=verdict.policy,
            action=verdict.action,
            started_ns=now_ns,
            deadline_ns=now_ns + self._patience_ns,
            stages=stages,
            await_training=await_training,
        )
        match plan.action:
            case CordonNode(node=node, lasts_s=lasts_s):
                self._fleet.cordons.add(node, lasts_s, now_ns)
            case UncordonNode(node=node):
                self._fleet.cordons.lift(node)
        if isinstance(plan.action, Alert | CordonNode | UncordonNode):
            return [_outcome(plan, "done", self._summary(plan), now_ns)]
        self._enter(plan)
        outputs: list[Output] = []
        match plan.action:
            case PauseRun():
                self._pauses.make(plan.verdict, [worker for worker, _ in plan.stages[0].lives])
            case ResumeRun():
                outputs = self._end_pause("", now_ns)
        return outputs + self._issue_stage(plan, now_ns)

    def _end_pause(self, why: str, now_ns: int) -> list[Output]:
        """End the pause in force, and one that is being made."""
        making = self.plans.get(self._acts_on.get(target_of(PauseRun()), ""))
        ended = self._end(making, why or "resumed before all had paused", now_ns) if making else []
        return ended + self._pauses.end(why)

    def supersede(self, verdict: Verdict, now_ns: int) -> list[Output]:
        """Take back what is under way where a newer change of the same knob takes its place.

        What has reached its worker is applied before the newer value, or put right after it.
        """
        action = verdict.action
        if not isinstance(action, ChangeKnob):
            return []
        (stage,), _ = self._staging.stages(action, self._reserved(action))
        older = self._ledger.telling([worker for worker, _ in stage.lives], action.knob)
        outputs = self._ledger.recall_unreached(command.id for command in older)
        for command in older:
            self.settled(command, f"superseded by {verdict.proposal}")
        causes = dict.fromkeys(command.cause for command in older)
        return outputs + self._advance_each(causes, now_ns)

    def settled(self, command: Command, status: str, detail: str = "") -> None:
        """Take note that a command has ended, and for the outcome why."""
        pending = self._pending.get(command.cause, set())
        if command.id not in pending:
            return
        pending.remove(command.id)
        if status == "applied":
            return
        plan = self.plans[command.cause]
        missed = plan.missed
        if len(missed) < _NAMED:
            why = f"{status}: {detail}" if detail else status
            missed = {**missed, command.id: why[:_WHY_CHARACTERS]}
        self.plans[plan.verdict] = msgspec.structs.replace(
            plan, missed=missed, missed_count=plan.missed_count + 1
        )

    def advance_all(self, now_ns: int) -> list[Output]:
        """Issue the next stage of every plan that is ready for it, and end those that are over."""
        return self._advance_each(list(self.plans), now_ns)

    def advance(self, verdict: str, now_ns: int) -> list[Output]:
        """Do the same for one plan and for those that wait for a stand-by."""
        return self._advance_each([verdict, *self._waiting], now_ns)

    def _advance_each(self, verdicts: Iterable[str], now_ns: int) -> list[Output]:
        outputs: list[Output] = []
        for verdict in verdicts:
            if verdict in self.plans:
                outputs += self._advance(self.plans[verdict], now_ns)
        return outputs

    def _advance(self, plan: Plan, now_ns: int) -> list[Output]:
        if isinstance(plan.action, PauseRun):
            trouble = _missed_text(plan) if plan.missed else self._pauses.trouble(now_ns)
            if trouble:
                return self._end(plan, trouble, now_ns)
        if self._pending[plan.verdict]:
            return []
        if plan.missed:
            return self._end(plan, _missed_text(plan), now_ns)
        if not plan.stages:
            return self._end(plan, "", now_ns)
        waits = [w for w in plan.await_training if not self._is_training(w)]
        if waits:
            gone = [w for w in waits if self._is_gone(w)]
            if gone:
                return self._end(
                    plan, f"stand-by {', '.join(gone)} ended before it trained", now_ns
                )
            if now_ns > plan.deadline_ns:
                return self._end(plan, f"stand-by {', '.join(waits)} did not train in time", now_ns)
            return []
        gone = [w for w, incarnation in plan.stages[0].lives if self._is_gone(w, incarnation)]
        if gone:
            return self._end(plan, f"{', '.join(gone)} ended before its turn", now_ns)
        return self._issue_stage(plan, now_ns)

    def _issue_stage(self, plan: Plan, now_ns: int) -> list[Output]:
        outputs: list[Output] = []
        issued: list[str] = []
        stage = plan.stages[0]
        for worker, incarnation in stage.lives:
            command_id, given_out = self._ledger.issue(
                worker, incarnation, stage.deed, plan.verdict, now_ns
            )
            issued.append(command_id)
            outputs += given_out
        self._pending[plan.verdict] = set(issued)
        self.plans[plan.verdict] = msgspec.structs.replace(
            plan,
            stages=plan.stages[1:],
            commands=tuple(issued),
            applied=plan.applied + len(plan.commands),
        )
        return outputs

    def _enter(self, plan: Plan) -> None:
        self.plans[plan.verdict] = plan
        self._pending[plan.verdict] = set()
        self._acts_on[target_of(plan.action)] = plan.verdict
        if plan.await_training:
            self._waiting[plan.verdict] = None

    def _end(self, plan: Plan, trouble: str, now_ns: int) -> list[Output]:
        pending = self._pending.pop(plan.verdict)
        del self.plans[plan.verdict]
        if self._acts_on.get(target_of(plan.action)) == plan.verdict:
            del self._acts_on[target_of(plan.action)]
        self._waiting.pop(plan.verdict, None)
        outputs: list[Output] = []
        if isinstance(plan.action, PauseRun):
            outputs = self._pauses.settle(trouble)
            if trouble:  # whoever has paused goes on: there are no halves
                still_open = [command_id for command_id in plan.commands if command_id in pending]
                outputs += self._ledger.recall_unreached(still_open)
                return [*outputs, _outcome(plan, "undone", trouble, now_ns)]
        if not trouble:
            return [*outputs, _outcome(plan, "done", self._summary(plan), now_ns)]
        applied = plan.applied + len(plan.commands) - plan.missed_count - len(pending)
        return [_outcome(plan, "partial" if applied > 0 else "undone", trouble, now_ns)]

    def never_started(self, verdict: Verdict, why: str, now_ns: int) -> Outcome:
        """Return the outcome of what an earlier Weaver granted and never began."""
        return Outcome(
            verdict=verdict.proposal,
            policy=verdict.policy,
            action=verdict.action,
            result="undone",
            detail=why,
            took_s=0.0,
        )

    def abandon_all(self, why: str, now_ns: int) -> list[Output]:
        """End every plan and take back the commands that have not reached their worker."""
        outputs = self._ledger.recall_unreached(list(self._ledger.flights))
        outputs += self._end_pause(why, now_ns)
        for plan in list(self.plans.values()):
            outputs += self._end(plan, why, now_ns)
        return outputs

    def reconcile(
        self, hellos: Iterable[Hello], desired: DesiredKnobs, now_ns: int
    ) -> list[Output]:
        """Command the knobs of workers whose values are not what they should be."""
        if self.stopped:
            return []
        outputs: list[Output] = []
        for hello in hellos:
            worker, row = hello.worker, self._fleet.row_of[hello.worker]
            if self._fleet.is_over(row):
                continue
            on_the_way = self._ledger.knobs_on_the_way(worker)
            for deed in desired.missing(hello, self._fleet.knobs[row], self._fleet.knob_specs):
                if deed.knob not in on_the_way:
                    outputs += self._ledger.issue(
                        worker, hello.incarnation, deed, RECONCILE, now_ns
                    )[1]
        return outputs

    def restore(
        self, plans: Iterable[Plan], commands: Iterable[Command], stopped: bool, now_ns: int
    ) -> None:
        """Take over the plans that an earlier Weaver left, and the kill switch.

        ``commands`` are those whose end is still to be told, whether or not they were sent. What
        was begun by a clock that was ahead has as long from now on as it would have had.
        """
        stages: dict[str, set[str]] = {}
        for plan in plans:
            ahead_ns = max(0, plan.started_ns - now_ns)
            self._enter(
                msgspec.structs.replace(
                    plan,
                    started_ns=plan.started_ns - ahead_ns,
                    deadline_ns=plan.deadline_ns - ahead_ns,
                )
            )
            stages[plan.verdict] = set(plan.commands).difference(plan.missed)
            if isinstance(plan.action, PauseRun):
                self._pauses.make(plan.verdict, ())
                self._pauses.give_up("the Weaver was started again before all had paused")
        for command in commands:
            if command.id in stages.get(command.cause, ()):
                self._pending[command.cause].add(command.id)
        if stopped:
            self.stop()

    def _is_training(self, worker: str) -> bool:
        row = self._fleet.row_of.get(worker)
        return row is not None and self._fleet.state[row] == "training"

    def _is_gone(self, worker: str, incarnation: int | None = None) -> bool:
        """Say whether the worker, or this life of it, is known to have ended."""
        row = self._fleet.row_of.get(worker)
        if row is None:
            return False
        another = incarnation not in (None, self._fleet.hello[row].incarnation)
        return another or self._fleet.state[row] == "gone"

    def _summary(self, plan: Plan) -> str:
        count = len(plan.commands)
        workers = "1 worker" if count == 1 else f"{count} workers"
        match plan.action:
            case Migrate(group=group):
                joined = ", ".join(plan.await_training)
                return f"{joined} joined, then {group} drained"
            case DrainGroup(group=group):
                return f"{group} drained"
            case ChangeKnob(knob=knob, value=value):
                done = f"{knob} = {value!r} on {workers}"
                return ", ".join(filter(None, [done, self._staging.left_out(plan.action)]))
            case SaveCheckpoint():
                return f"saved by {workers}"
            case PauseRun():
                at_step = self._pauses.step_text()
                return f"{workers} paused{at_step}, until torchloom resume; {_PAUSE_LASTS}"
            case ResumeRun():
                return f"{workers} resumed" if count else "the pause was called off"
            case CollectDump(worker=worker):
                show = f"torchloom trajectory show --kind note --worker {worker} --json"
                return f"the dump of {worker} is a note in the trajectory: {show}"
            case Alert(text=text):
                return text
            case CordonNode(node=node, lasts_s=lasts_s):
                return f"nobody new is put on {node}{f' for {lasts_s:.0f} s' if lasts_s else ''}"
            case UncordonNode(node=node):
                return f"{node} may be used again"


def _missed_text(plan: Plan) -> str:
    text = ", ".join(f"{command_id} {why}" for command_id, why in plan.missed.items())
    more = plan.missed_count - len(plan.missed)
    return f"{text} and {more} more" if more else text


def _outcome(plan: Plan, result: str, detail: str, now_ns: int) -> Outcome:
    return Outcome(
        verdict=plan.verdict,
        policy=plan.policy,
        action=plan.action,
        result=result,  # type: ignore[arg-type]
        detail=detail,
        took_s=(now_ns - plan.started_ns) / SECOND_NS,
    )
