"""Carry out what was granted: plans of commands, stage by stage, and how they end.

The kernel starts a plan for each granted verdict and advances all of them at every tick and
ack. It is also the :class:`~torchloom_core.arbiter.rails.Situation` that the rails look at.
"""

from collections.abc import Iterable, Set

import msgspec

from torchloom_core.actions import (
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
from torchloom_core.clock import SECOND_NS
from torchloom_core.decisions import (
    Outcome,
    Output,
    Recall,
    Verdict,
)
from torchloom_core.desired import DesiredKnobs
from torchloom_core.fleet.state import FleetState
from torchloom_core.ledger import Ledger
from torchloom_core.messages import Hello
from torchloom_core.plans import Plan
from torchloom_core.staging import Staging


class Operations:
    """The plans under way, and what they keep busy."""

    def __init__(
        self, fleet: FleetState, ledger: Ledger, staging: Staging, deadline_s: float
    ) -> None:
        self._fleet = fleet
        self._ledger = ledger
        self._staging = staging
        self._patience_ns = round(2 * deadline_s * SECOND_NS)
        self.plans: dict[str, Plan] = {}
        self.stopped = False

    # --- what the rails ask ---

    def obstacle(self, action: Action) -> str:
        """Return why the action cannot be carried out at all, or nothing."""
        return self._staging.obstacle(action, self._reserved())

    def in_progress(self, target: str) -> str:
        """Return the verdict whose plan works on the target, or nothing."""
        return next((p.verdict for p in self.plans.values() if target_of(p.action) == target), "")

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

    def _reserved(self) -> set[str]:
        """Return stand-by workers that some plan has taken already."""
        return {worker for plan in self.plans.values() for worker in plan.await_training}

    # --- the life of a plan ---

    def start(self, verdict: Verdict, now_ns: int) -> list[Output]:
        """Make a plan of a granted verdict and issue its first stage.

        What needs no worker is done at once.
        """
        stages, await_training = self._staging.stages(verdict.action, self._reserved())
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
        self.plans[plan.verdict] = plan
        return self._issue_stage(plan, now_ns)

    def settled(self, command_id: str, status: str, detail: str = "") -> None:
        """Take note that a command has ended, and for the outcome why."""
        for plan in self.plans.values():
            if command_id in plan.pending:
                why = detail and status != "applied"
                self.plans[plan.verdict] = msgspec.structs.replace(
                    plan,
                    pending=tuple(c for c in plan.pending if c != command_id),
                    settled={**plan.settled, command_id: f"{status}: {detail}" if why else status},
                )
                return

    def advance(self, now_ns: int) -> list[Output]:
        """Issue the next stage of every plan that is ready for it, and end those that are over."""
        outputs: list[Output] = []
        for plan in list(self.plans.values()):
            outputs += self._advance(plan, now_ns)
        return outputs

    def _advance(self, plan: Plan, now_ns: int) -> list[Output]:
        if plan.pending:
            return []
        missed = [f"{c} {s}" for c, s in plan.settled.items() if s != "applied"]
        if missed:
            return self._end(plan, ", ".join(missed), now_ns)
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
        gone = [w for w, incarnation, _ in plan.stages[0] if self._is_gone(w, incarnation)]
        if gone:
            return self._end(plan, f"{', '.join(gone)} ended before its turn", now_ns)
        return self._issue_stage(plan, now_ns)

    def _issue_stage(self, plan: Plan, now_ns: int) -> list[Output]:
        outputs: list[Output] = []
        pending = []
        for worker, incarnation, deed in plan.stages[0]:
            command_id, issued = self._ledger.issue(worker, incarnation, deed, plan.verdict, now_ns)
            pending.append(command_id)
            outputs += issued
        self.plans[plan.verdict] = msgspec.structs.replace(
            plan, stages=plan.stages[1:], pending=tuple(pending)
        )
        return outputs

    def _end(self, plan: Plan, trouble: str, now_ns: int) -> list[Output]:
        del self.plans[plan.verdict]
        if not trouble:
            return [_outcome(plan, "done", self._summary(plan), now_ns)]
        partly = any(status == "applied" for status in plan.settled.values())
        return [_outcome(plan, "partial" if partly else "undone", trouble, now_ns)]

    def abandon_all(self, why: str, now_ns: int) -> list[Output]:
        """End every plan and take back the commands that have not reached their worker.

        A command that has reached it stays in flight: its worker says what became of it.
        """
        outputs: list[Output] = []
        for command_id, flight in list(self._ledger.flights.items()):
            if flight.status == "issued":
                outputs.append(Recall(command=command_id, worker=flight.command.worker))
                outputs += self._ledger.settle(command_id, "expired", why)
                self.settled(command_id, "expired", why)
        for plan in list(self.plans.values()):
            outputs += self._end(plan, why, now_ns)
        return outputs

    def reconcile(
        self, hellos: Iterable[Hello], desired: DesiredKnobs, now_ns: int
    ) -> list[Output]:
        """Command the knobs of workers whose values are not what they should be."""
        if self.stopped:
            return []
        in_flight = self._ledger.knobs_in_flight()
        outputs: list[Output] = []
        for hello in hellos:
            worker, row = hello.worker, self._fleet.row_of[hello.worker]
            if self._fleet.is_over(row):
                continue
            for deed in desired.missing(hello, self._fleet.knobs[row]):
                if (worker, deed.knob) not in in_flight:
                    outputs += self._ledger.issue(
                        worker, hello.incarnation, deed, "reconcile", now_ns
                    )[1]
        return outputs

    def restore(self, plans: Iterable[Plan]) -> None:
        """Take over the plans that an earlier Weaver left."""
        self.plans = {plan.verdict: plan for plan in plans}

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
        count = len(plan.settled)
        workers = "1 worker" if count == 1 else f"{count} workers"
        match plan.action:
            case Migrate(group=group):
                joined = ", ".join(plan.await_training)
                return f"{joined} joined, then {group} drained"
            case DrainGroup(group=group):
                return f"{group} drained"
            case ChangeKnob(knob=knob, value=value):
                return f"{knob} = {value!r} on {workers}"
            case SaveCheckpoint():
                return f"saved by {workers}"
            case PauseRun():
                return f"{workers} paused"
            case ResumeRun():
                return f"{workers} resumed"
            case CollectDump(worker=worker):
                return f"dump of {worker} collected"
            case Alert(text=text):
                return text
            case CordonNode(node=node, lasts_s=lasts_s):
                return f"nobody new is put on {node}{f' for {lasts_s:.0f} s' if lasts_s else ''}"
            case UncordonNode(node=node):
                return f"{node} may be used again"


def _outcome(plan: Plan, result: str, detail: str, now_ns: int) -> Outcome:
    return Outcome(
        verdict=plan.verdict,
        policy=plan.policy,
        action=plan.action,
        result=result,  # type: ignore[arg-type]
        detail=detail,
        took_s=(now_ns - plan.started_ns) / SECOND_NS,
    )
