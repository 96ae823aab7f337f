"""Carry out what was granted: plans of commands, stage by stage, and how they end.

The kernel starts a plan for each granted verdict and advances all of them at every tick and
ack. It is also the :class:`~torchloom_core.kernel.arbiter.limits.Situation` of the safety
limits. What a plan is made of, and what is peculiar to it, its kind of action says.
"""

from collections.abc import Iterable, Set

import msgspec

from torchloom_core.clock import SECOND_NS
from torchloom_core.config.schema import Config
from torchloom_core.kernel.actions.kinds import kind_of
from torchloom_core.kernel.actions.pause import PAUSING
from torchloom_core.kernel.actions.run import Run
from torchloom_core.persistent_table import PersistentTable
from torchloom_core.wire.actions import Action, ChangeKnob
from torchloom_core.wire.events import Issue, Outcome, Output, Verdict
from torchloom_core.wire.messages import (
    RECONCILE,
    Command,
    Drain,
    FencedChange,
    Hello,
    Join,
    KnobValues,
    Prepare,
    Withdraw,
)
from torchloom_core.wire.plans import Plan, Stage, Stopped, begun_by, called_off, missed_text

WITHDRAWAL = "withdrawn"
"""The cause of commands that take back what a rank cannot do."""


class Execution:
    """Starts, advances and ends the plans of a run.

    Attributes
    ----------
    called_off : set of str
        Verdicts that a person called off: whatever came of them is no failure of the action's.
    """

    def __init__(self, run: Run, config: Config) -> None:
        self._run = run
        self._dry_run = config.arbiter.dry_run
        self._plans = run.plans
        self._commands = run.commands
        self._patience_ns = round(2 * config.weaver.command_deadline_s * SECOND_NS)
        self._restored_ns = 0
        self.called_off: set[str] = set()
        self.switch: PersistentTable[Stopped] = PersistentTable("actions")

    @property
    def stopped(self) -> bool:
        """Whether the kill switch is on."""
        return "stopped" in self.switch

    @property
    def is_passive(self) -> bool:
        """Whether nothing is told to workers that no plan asks for."""
        return self._dry_run or self.stopped

    def stop(self) -> None:
        """Throw the kill switch."""
        self.switch["stopped"] = Stopped()

    def resume(self) -> None:
        """Release the kill switch."""
        self.switch.pop("stopped", None)

    # --- what the safety limits ask ---

    def obstacle(self, action: Action) -> str:
        """Return why the action cannot be carried out at all, or nothing."""
        return kind_of(action).obstacle(action, self._run)

    def in_progress(self, target: str) -> str:
        """Return the verdict whose plan works on the target, or nothing."""
        plan = self._plans.table.get(self._plans.on(target))
        return plan.verdict if plan and not plan.called_off else ""

    def training_groups(self) -> set[str]:
        """Return the replica groups that train."""
        return self._run.training_groups()

    def nodes(self) -> set[str]:
        """Return every node that is known."""
        return self._run.fleet.nodes()

    def cordoned(self) -> Set[str]:
        """Return the nodes on which nobody new is put."""
        return self._run.fleet.cordons.nodes

    def groups_in_motion(self) -> set[str]:
        """Return the replica groups that some plan moves away."""
        plans = self._plans.table.values()
        return {group for plan in plans for group in kind_of(plan.action).moves(plan.action)}

    # --- the life of a plan ---

    def start(self, verdict: Verdict) -> list[Output]:
        """Make a plan of a granted verdict and issue its first stage.

        What needs no worker is done at once.
        """
        run, now_ns = self._run, self._run.now_ns
        kind = kind_of(verdict.action)
        stages, await_training = kind.stages(verdict.action, run)
        operation = stages[0].operation if stages else None
        plan = Plan(
            verdict=verdict.proposal,
            policy=verdict.policy,
            action=verdict.action,
            started_ns=now_ns,
            deadline_ns=now_ns + self._patience_ns,
            stages=stages,
            await_training=await_training,
            change=operation.number if isinstance(operation, FencedChange) else 0,
        )
        kind.at_once(plan.action, run.fleet.cordons, now_ns)
        if not stages:
            return [Outcome.of(plan, "done", kind.summary(plan.action, plan, run), now_ns)]
        self._plans.enter(plan, kind.target(plan.action))
        outputs = self._call_off(*kind.calls_off(plan.action))
        if plan.change and self._plans.change_before(plan):
            return outputs
        return outputs + self._begin(plan)

    def _begin(self, plan: Plan) -> list[Output]:
        outputs = kind_of(plan.action).begin(plan, self._run)
        return outputs + self._issue_stage(plan)

    def supersede(self, verdict: Verdict) -> list[Output]:
        """Take back what is under way where a newer action of its kind takes its place.

        What has reached its worker is applied before the newer one, or put right after it.
        """
        older = list(kind_of(verdict.action).superseded(verdict.action, self._run))
        outputs = self._commands.withdraw_undelivered(command.id for command in older)
        for command in older:
            self.settled(command, f"superseded by {verdict.proposal}")
        causes = dict.fromkeys(command.cause for command in older)
        return outputs + self._advance_each(causes)

    def settled(self, command: Command, status: str, detail: str = "", step: int = -1) -> None:
        """Take note that a command has ended, and for the outcome why."""
        self._run.held_standbys.settled(command, status)
        self._plans.settled(command, status, detail, step)

    def advance_all(self) -> list[Output]:
        """Issue the next stage of every plan that is ready for it, and end those that are over."""
        return self._advance_each(list(self._plans.table))

    def advance(self, verdict: str) -> list[Output]:
        """Do the same for one plan and for those that wait for a standby."""
        return self._advance_each([verdict, *self._plans.waiting])

    def _advance_each(self, verdicts: Iterable[str]) -> list[Output]:
        outputs: list[Output] = []
        for verdict in verdicts:
            if verdict in self._plans.table:
                outputs += self._advance(self._plans.table[verdict])
        return outputs

    def _advance(self, plan: Plan) -> list[Output]:
        if plan.called_off:
            return self._close(plan)
        trouble = kind_of(plan.action).trouble(plan, self._run)
        if trouble:
            return self._end(plan, trouble)
        if plan.change:
            return self._advance_fenced(plan)
        if self._plans.open_of(plan.verdict):
            return []
        if plan.missed:
            return self._end(plan, kind_of(plan.action).shortfall(plan.action, plan, self._run))
        is_first, fleet = not plan.applied, self._run.fleet
        waits = [w for w in plan.await_training if is_first and not fleet.is_training(w)]
        if waits:
            gone = [w for w in waits if fleet.is_gone(w)]
            if gone:
                return self._end(plan, f"standby {', '.join(gone)} ended before it trained")
            if self._is_late(plan):
                return self._end(plan, f"standby {', '.join(waits)} did not train in time")
            return []
        if not plan.stages:
            return self._end(plan, "")
        gone = [
            w for w, incarnation in plan.stages[0].incarnations if fleet.is_gone(w, incarnation)
        ]
        if gone:
            return self._end(plan, f"{', '.join(gone)} ended before its turn")
        return self._issue_stage(plan)

    def _is_late(self, plan: Plan) -> bool:
        return self._commands.report_time.is_past(plan.deadline_ns, self._run.now_ns)

    def _advance_fenced(self, plan: Plan) -> list[Output]:
        """Offer a change to all once no other is offered, and end it once all have answered.

        What one rank cannot do is withdrawn from the others. Whether all have done it or none, the
        answers say; a rank that is silent gives none.
        """
        run = self._run
        if plan.stages:
            if self._plans.change_before(plan):
                return []
            stage = run.stage(run.voters(), plan.stages[0].operation)
            if not stage.incarnations and not self._is_late(plan):
                return []  # a new Weaver has yet to hear of them, or they are on their way back
            return self._begin(msgspec.structs.replace(plan, stages=(stage,)))
        waited_for = self._plans.open_of(plan.verdict)
        if waited_for and plan.fate == "refused":
            return self._withdraw(plan, waited_for)
        if any(self._may_answer(plan, command_id) for command_id in waited_for):
            return []
        applied = len(plan.commands) - plan.missed_count - len(waited_for)
        is_done = plan.fate != "failed" and applied > plan.refused_count
        return self._end(plan, "" if is_done else missed_text(plan) or "nobody was left to do it")

    def _withdraw(self, plan: Plan, command_ids: Iterable[str]) -> list[Output]:
        """Have the ranks that hold a change let go of it."""
        self._plans.table[plan.verdict] = msgspec.structs.replace(plan, fate="withdrawn")
        return self._let_go(plan, command_ids)

    def _let_go(self, plan: Plan, command_ids: Iterable[str]) -> list[Output]:
        told = [self._commands.flights[command_id].command for command_id in sorted(command_ids)]
        lives = tuple((command.worker, command.incarnation) for command in told)
        return self._run.issue(
            Stage(operation=Withdraw(number=plan.change), incarnations=lives), WITHDRAWAL
        )

    def offer_to_newcomers(self) -> list[Output]:
        """Offer the change that all are offered also to those that have come since."""
        run, hello = self._run, self._run.fleet.hello
        for plan in self._plans.table.values():
            open_ids = self._plans.open_of(plan.verdict)
            if not plan.change or not open_ids or plan.fate != "offered" or plan.landed:
                continue
            lives = self._plans.incarnations_of(plan.verdict)
            rows = [r for r in run.voters() if (hello[r].worker, hello[r].incarnation) not in lives]
            if not rows:
                continue
            stage = run.stage(rows, self._commands.flights[min(open_ids)].command.do)
            outputs = run.issue(stage, plan.verdict)
            issued = [output.command.id for output in outputs if isinstance(output, Issue)]
            self._plans.opened(plan.verdict, [*open_ids, *issued], (*lives, *stage.incarnations))
            self._plans.table[plan.verdict] = msgspec.structs.replace(
                plan, commands=(*plan.commands, *issued)
            )
            return outputs
        return []

    def _may_answer(self, plan: Plan, command_id: str) -> bool:
        """Say whether its worker still may answer; one that a new Weaver has yet to hear may."""
        run, command = self._run, self._commands.flights[command_id].command
        row = run.fleet.row_of.get(command.worker)
        is_early = not plan.landed and (not plan.missed or run.now_ns <= command.deadline_ns)
        is_open = is_early or self._commands.report_time.lags(run.now_ns)
        return row is None or is_open or bool(run.reachable([row]))

    def overdue(self) -> list[str]:
        """Return the commands of which nothing was heard until well past their deadline.

        What all do together may have been done by those of which nothing at all is heard.
        """
        run, flights = self._run, self._commands.flights
        late = self._commands.overdue(run.now_ns)
        return [c for c in late if not self._may_be_done(flights[c].command)]

    def _may_be_done(self, command: Command) -> bool:
        run, plan = self._run, self._plans.table.get(command.cause)
        if plan is None or not plan.change:
            return False
        row = run.fleet.row_of.get(command.worker)
        if row is None:
            return run.now_ns < self._restored_ns + run.stale_ns
        return not run.fleet.is_audible(row, run.now_ns)

    def _issue_stage(self, plan: Plan) -> list[Output]:
        due = plan.stages if kind_of(plan.action).side_by_side else plan.stages[:1]
        outputs = [output for stage in due for output in self._run.issue(stage, plan.verdict)]
        issued = [output.command.id for output in outputs if isinstance(output, Issue)]
        lives = [life for stage in due for life in stage.incarnations]
        self._plans.opened(plan.verdict, issued, lives)
        self._plans.table[plan.verdict] = msgspec.structs.replace(
            plan,
            stages=plan.stages[len(due) :],
            commands=tuple(issued),
            applied=plan.applied + len(plan.commands),
        )
        joins = isinstance(plan.stages[0].operation, Join)
        return outputs + (self._hold_back_standbys() if joins else [])

    def _end(self, plan: Plan, trouble: str) -> list[Output]:
        run, kind = self._run, kind_of(plan.action)
        still_open = self._plans.leave(plan, kind.target(plan.action))
        outputs = kind.end(plan, trouble, run)
        if plan.change and plan.fate == "offered":
            outputs += self._let_go(plan, still_open)
        if trouble and not (self.stopped or plan.called_off or plan.applied):
            outputs += self._send_back(plan)
        if not trouble:
            done = kind.summary(plan.action, plan, run)
            return [*outputs, Outcome.of(plan, "done", done, run.now_ns)]
        applied = plan.applied + len(plan.commands) - plan.missed_count - len(still_open)
        is_half_done = applied > 0
        if plan.change:
            is_half_done = plan.fate == "failed" and not kind.is_set_back
        elif kind.all_or_none:
            unsent = [command_id for command_id in plan.commands if command_id in still_open]
            outputs += self._commands.withdraw_undelivered(unsent)
            is_half_done = False
        result = "partial" if is_half_done else "undone"
        return [*outputs, Outcome.of(plan, result, trouble, run.now_ns)]

    def _send_back(self, plan: Plan) -> list[Output]:
        """Send home the part of a standby group that joined without the rest."""
        run, fleet = self._run, self._run.fleet
        rows = [fleet.row_of[worker] for worker in plan.await_training if worker in fleet.row_of]
        joined = [row for row in rows if fleet.state[row] in ("joining", "training")]
        is_whole = len(joined) == len(plan.await_training)
        return [] if is_whole else run.issue(run.stage(joined, Drain()), plan.verdict)

    def _call_off(self, target: str, why: str) -> list[Output]:
        """End the plan that works on the target, if one does."""
        plan = self._plans.table.get(self._plans.on(target))
        return self._end(plan, why) if plan else []

    def abandon_all(self, why: str) -> list[Output]:
        """Call off every plan and the pause, and take back the commands that reached no worker.

        What changes the run ends once it is known of each of its commands what became of it.
        """
        flights = self._commands.flights
        outputs = self._commands.withdraw_undelivered(
            [name for name in flights if not isinstance(flights[name].command.do, Withdraw)]
        )
        self.called_off.add(self._plans.on(PAUSING))
        outputs += self._call_off(PAUSING, why) + self._run.pauses.end(why)
        for plan in list(self._plans.table.values()):
            if kind_of(plan.action).changes_run:
                self._plans.table[plan.verdict] = called_off(plan, why)
                outputs += self._advance(self._plans.table[plan.verdict])
            else:
                self.called_off.add(plan.verdict)
                outputs += self._end(plan, why)
        return outputs

    def _close(self, plan: Plan) -> list[Output]:
        """End a plan that was called off once all its commands have ended, as they have."""
        if self._plans.open_of(plan.verdict):
            return []
        self.called_off.add(plan.verdict)
        applied = len(plan.commands) - plan.missed_count
        if not (plan.missed or plan.stages or plan.await_training):
            outputs = self._end(plan, "")
        elif applied and plan.missed:
            count = f"{applied} of {len(plan.commands)} commands were applied"
            outputs = self._end(plan, f"{plan.called_off}: {count}")
        else:
            outputs = self._end(plan, plan.called_off)
        if applied and isinstance(plan.action, ChangeKnob):  # its value is not in doubt any more
            outputs += self.reconcile(self._run.fleet.hello)
        return outputs

    def reconcile(self, hellos: Iterable[Hello]) -> list[Output]:
        """Command the knobs of workers whose values are not what they should be."""
        if self.stopped:
            return []
        fleet = self._run.fleet
        unsettled = self._plans.unsettled()
        outputs: list[Output] = []
        for hello in hellos:
            worker, row = hello.worker, fleet.row_of[hello.worker]
            if fleet.is_over(row) or not self._run.launches.knows(hello):
                continue
            on_the_way = self._commands.knobs_in_flight(worker)
            present = fleet.knobs[row]
            for operation in self._run.desired.missing(hello, present, fleet.knob_specs, unsettled):
                if operation.knob not in on_the_way:
                    outputs += self._run.issue(self._run.stage([row], operation), RECONCILE)
        return outputs

    def wanted_nowhere(self) -> KnobValues:
        """Return the run-fenced knobs that are to be set again: a run that began anew has none."""
        run = self._run
        changes = any(plan.change for plan in self._plans.table.values())
        if not run.desired.table or self.is_passive or changes:
            return {}
        rows, hello = run.voters(), run.fleet.hello
        lives = [(hello[row].worker, hello[row].incarnation) for row in rows]
        if not all(run.launches.knows(hello[row]) for row in rows):
            return {}
        present = [run.fleet.knobs[row] for row in rows]
        return run.desired.nowhere(run.fleet.knob_specs, lives, present)

    def prepare_standbys(self) -> list[Output]:
        """Have standbys held back, and tell those to prepare of whom the lighthouse knows."""
        run, outputs = self._run, self._hold_back_standbys()
        if self.is_passive:
            return outputs
        ready = run.held_standbys.to_prepare(run.commands.workers_with(Join, Drain, Prepare))
        return outputs + run.issue(run.stage(ready, Prepare()), "standby")

    def _hold_back_standbys(self) -> list[Output]:
        return self._run.held_standbys.hold_back(self._commands.workers_with(Join))

    def restore(self, plans: Iterable[Plan], commands: Iterable[Command], stopped: bool) -> None:
        """Take over the plans that an earlier Weaver left, and the kill switch.

        ``commands`` are those whose end is still to be told, whether or not they were sent. What
        was begun by a clock that was ahead has as long from now on as it would have had.
        """
        self._restored_ns = self._run.now_ns
        open_of: dict[str, list[Command]] = {}
        for command in commands:
            open_of.setdefault(command.cause, []).append(command)
        for plan in plans:
            kind = kind_of(plan.action)
            self._plans.enter(begun_by(plan, self._run.now_ns), kind.target(plan.action))
            present = set(plan.commands).difference(plan.missed)
            own = [c for c in open_of.get(plan.verdict, ()) if c.id in present]
            lives = [(command.worker, command.incarnation) for command in own]
            self._plans.opened(plan.verdict, [command.id for command in own], lives)
            kind.restored(plan, self._run)
        if stopped:
            self.stop()
