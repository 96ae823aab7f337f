"""Carry out granted actions: plans of commands, stage by stage, to their outcomes.

The kernel starts a plan for each granted verdict and advances all plans at every tick and ack.
The kind of action defines the stages of a plan.
"""

from collections.abc import Iterable

import msgspec

from torchloom_core.config.schema import Config
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import PluginError
from torchloom_core.live.kernel.actions.fenced import ranks_for
from torchloom_core.live.kernel.actions.kinds import kind_of
from torchloom_core.live.kernel.actions.run import PAUSING, Run, of_role
from torchloom_core.live.kernel.upkeep import Upkeep
from torchloom_core.wire.actions import ChangeKnob
from torchloom_core.wire.commands import Command
from torchloom_core.wire.decisions import Issue, Outcome, Output, Verdict
from torchloom_core.wire.operations import Drain, FencedChange, Join, Withdraw
from torchloom_core.wire.plans import (
    Plan,
    Stage,
    begun_by,
    called_off,
    missed_text,
    offered_to,
    offered_to_more,
)

WITHDRAWAL = "withdrawn"
"""The cause of commands that withdraw a change that a rank rejected."""


class Execution:
    """Starts, advances and ends the plans of a run.

    Attributes
    ----------
    called_off : set of str
        Verdicts that a person called off; their outcome does not count as a failed action.
    """

    def __init__(self, run: Run, upkeep: Upkeep, config: Config) -> None:
        self._run = run
        self._upkeep = upkeep
        self._plans = run.plans
        self._commands = run.commands
        self._patience_ns = round(2 * config.weaver.command_deadline_s * SECOND_NS)
        self._restored_ns = 0
        self.called_off: set[str] = set()

    # --- plans ---

    def start(self, verdict: Verdict) -> list[Output]:
        """Start the plan of a granted verdict; an action without commands is done at once."""
        run, now_ns = self._run, self._run.now_ns
        kind = kind_of(verdict.action)
        try:
            stages, await_training = kind.stages(verdict.action, run)
        except PluginError as error:
            return [Outcome.never_started(verdict, str(error))]
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
            role=operation.role if isinstance(operation, FencedChange) else "",
        )
        kind.at_once(plan.action, run.fleet.cordons, now_ns)
        if not stages and not kind.is_answered:
            return [Outcome.of(plan, "done", kind.summary(plan.action, plan, run), now_ns)]
        self._plans.enter(plan, kind.target(plan.action))
        outputs = self._call_off(*kind.calls_off(plan.action))
        if plan.change and self._plans.change_before(plan):
            return outputs
        return outputs + self._begin(plan)

    def _begin(self, plan: Plan) -> list[Output]:
        outputs = kind_of(plan.action).begin(plan, self._run)
        return outputs + self._issue_stage(plan) if plan.stages else outputs

    def supersede(self, verdict: Verdict) -> list[Output]:
        """Withdraw the commands that a newer action of the same kind supersedes.

        One that has reached its worker is applied before the newer one, or corrected after it.
        """
        older = list(kind_of(verdict.action).superseded(verdict.action, self._run))
        outputs = self._commands.withdraw_undelivered(command.id for command in older)
        for command in older:
            self.settled(command, f"superseded by {verdict.proposal}")
        return outputs + self._advance_each(dict.fromkeys(command.cause for command in older))

    def settled(self, command: Command, status: str, detail: str = "", step: int = -1) -> None:
        """Record that a command has ended, and why."""
        self._run.held_standbys.settled(command, status)
        self._plans.settled(command, status, detail, step)

    def advance_all(self) -> list[Output]:
        """Issue the next stage of every plan that is ready, and end finished plans."""
        return self._advance_each(list(self._plans.table))

    def advance(self, verdict: str) -> list[Output]:
        """Advance one plan, and the plans that wait for a standby."""
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
            return self._end(plan, "") if kind_of(plan.action).is_done(plan, self._run) else []
        gone = [
            w for w, incarnation in plan.stages[0].incarnations if fleet.is_gone(w, incarnation)
        ]
        if gone:
            return self._end(plan, f"{', '.join(gone)} ended before its command was sent")
        return self._issue_stage(plan)

    def _is_late(self, plan: Plan) -> bool:
        return self._commands.report_time.is_past(plan.deadline_ns, self._run.now_ns)

    def _advance_fenced(self, plan: Plan) -> list[Output]:
        """Offer a change to all ranks once no other is offered; end it once all have answered.

        If one rank rejects it, it is withdrawn from all. An unreachable rank sends no ack.
        """
        run = self._run
        change = plan.stages[0].operation if plan.stages else None
        if isinstance(change, FencedChange):
            if self._plans.change_before(plan):
                return []
            stage = run.stage(ranks_for(change, run), change)
            if not stage.incarnations and not self._is_late(plan):
                return []  # a new Weaver has no hellos yet, or the ranks are restarting
            return self._begin(offered_to(plan, stage))
        open_ids = self._plans.open_of(plan.verdict)
        if open_ids and plan.fate == "refused":
            self._plans.table[plan.verdict] = msgspec.structs.replace(plan, fate="withdrawn")
            return self._send_withdrawal(plan, open_ids)
        if any(self._may_answer(plan, command_id) for command_id in open_ids):
            return []
        applied = len(plan.commands) - plan.missed_count - len(open_ids)
        is_done = plan.fate != "failed" and applied > plan.refused_count
        if plan.stages and is_done and not plan.missed:  # each worker does the rest by itself
            return self._issue_stage(msgspec.structs.replace(plan, change=0))
        is_done &= not plan.stages
        return self._end(plan, "" if is_done else missed_text(plan) or "no rank is left to do it")

    def _send_withdrawal(self, plan: Plan, command_ids: Iterable[str]) -> list[Output]:
        """Withdraw an offered change from the ranks that have it."""
        flights = [self._commands.flights[command_id] for command_id in sorted(command_ids)]
        sent_to = tuple((one.command.worker, one.command.incarnation) for one in flights)
        stage = Stage(operation=Withdraw(number=plan.change), incarnations=sent_to)
        return self._run.issue(stage, WITHDRAWAL)

    def offer_to_new_ranks(self) -> list[Output]:
        """Offer the present change also to the ranks that have joined since."""
        run, hello = self._run, self._run.fleet.hello
        for plan in self._plans.table.values():
            open_ids = self._plans.open_of(plan.verdict)
            if not plan.change or not open_ids or plan.fate != "offered" or plan.landed:
                continue
            old = self._plans.incarnations_of(plan.verdict)
            change = self._commands.flights[min(open_ids)].command.do
            ranks = ranks_for(change, run) if isinstance(change, FencedChange) else []
            rows = [r for r in ranks if (hello[r].worker, hello[r].incarnation) not in old]
            if not rows:
                continue
            stage = run.stage(rows, change)
            outputs = run.issue(stage, plan.verdict)
            issued = [output.command.id for output in outputs if isinstance(output, Issue)]
            self._plans.opened(plan.verdict, [*open_ids, *issued], (*old, *stage.incarnations))
            self._plans.table[plan.verdict] = offered_to_more(plan, stage, issued)
            return outputs
        return []

    def _may_answer(self, plan: Plan, command_id: str) -> bool:
        """Return whether its worker may still answer; an unknown worker may."""
        run, command = self._run, self._commands.flights[command_id].command
        row = run.fleet.row_of.get(command.worker)
        is_early = not plan.landed and (not plan.missed or run.now_ns <= command.deadline_ns)
        is_open = is_early or self._commands.report_time.lags(run.now_ns)
        return row is None or is_open or bool(run.reachable([row]))

    def overdue(self) -> list[str]:
        """Return the commands without an ack well past their deadline.

        A fenced change is not overdue on an unreachable rank, which may have applied it.
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
        return not run.fleet.times.is_settled(row, run.now_ns)

    def _issue_stage(self, plan: Plan) -> list[Output]:
        due = plan.stages if kind_of(plan.action).side_by_side else plan.stages[:1]
        outputs = [output for stage in due for output in self._run.issue(stage, plan.verdict)]
        issued = [output.command.id for output in outputs if isinstance(output, Issue)]
        sent_to = [one for stage in due for one in stage.incarnations]
        self._plans.opened(plan.verdict, issued, sent_to)
        self._plans.table[plan.verdict] = msgspec.structs.replace(
            plan,
            stages=plan.stages[len(due) :],
            commands=tuple(issued),
            applied=plan.applied + len(plan.commands),
        )
        joins = isinstance(plan.stages[0].operation, Join)
        return outputs + (self._upkeep.hold_back_standbys() if joins else [])

    def _end(self, plan: Plan, trouble: str) -> list[Output]:
        run, kind = self._run, kind_of(plan.action)
        still_open = self._plans.leave(plan, kind.target(plan.action))
        outputs = kind.end(plan, trouble, run)
        if plan.change and plan.fate == "offered":
            outputs += self._send_withdrawal(plan, still_open)
        if trouble and not (self._run.switch.stopped or plan.called_off or plan.applied):
            outputs += self._drain_partial_join(plan)
        if not trouble:
            done = kind.summary(plan.action, plan, run)
            return [*outputs, Outcome.of(plan, "done", done, run.now_ns)]
        applied = plan.applied + len(plan.commands) - plan.missed_count - len(still_open)
        is_half_done = applied > 0
        if plan.change:
            is_half_done = plan.fate == "failed" and not kind.rolls_back
        elif kind.all_or_none:
            unsent = [command_id for command_id in plan.commands if command_id in still_open]
            outputs += self._commands.withdraw_undelivered(unsent)
            is_half_done = False
        result = "partial" if is_half_done else "undone"
        return [*outputs, Outcome.of(plan, result, trouble, run.now_ns)]

    def _drain_partial_join(self, plan: Plan) -> list[Output]:
        """Drain the workers of a standby group of which only a part joined."""
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
        """Call off every plan and the pause, and withdraw undelivered commands.

        A plan that changes the run ends once the result of each of its commands is known.
        """
        flights = self._commands.flights
        outputs = self._commands.withdraw_undelivered(
            [name for name in flights if not isinstance(flights[name].command.do, Withdraw)]
        )
        for target in [of_role(PAUSING, role) for role in self._run.pauses.of]:
            self.called_off.add(self._plans.on(target))
            outputs += self._call_off(target, why)
        outputs += self._run.pauses.end(why)
        for plan in list(self._plans.table.values()):
            if kind_of(plan.action).changes_run:
                self._plans.table[plan.verdict] = called_off(plan, why)
                outputs += self._advance(self._plans.table[plan.verdict])
            else:
                self.called_off.add(plan.verdict)
                outputs += self._end(plan, why)
        return outputs

    def end_before(self, began_ns: int, why: str) -> list[Output]:
        """End the changes that were asked for before a new job began: it is not to make them."""
        outputs: list[Output] = []
        for plan in list(self._plans.table.values()):
            if plan.change and plan.started_ns <= began_ns:
                outputs += self._end(plan, why)
        return outputs

    def _close(self, plan: Plan) -> list[Output]:
        """End a plan that was called off, once all its commands have ended."""
        if self._plans.open_of(plan.verdict):
            return []
        self.called_off.add(plan.verdict)
        applied = len(plan.commands) - plan.missed_count
        is_done = kind_of(plan.action).is_done(plan, self._run)
        if is_done and not (plan.missed or plan.stages or plan.await_training):
            outputs = self._end(plan, "")
        elif applied and plan.missed:
            count = f"{applied} of {len(plan.commands)} commands were applied"
            outputs = self._end(plan, f"{plan.called_off}: {count}")
        else:
            outputs = self._end(plan, plan.called_off)
        if applied and isinstance(plan.action, ChangeKnob):  # its value is settled now
            outputs += self._upkeep.reconcile(self._run.fleet.hello)
        return outputs

    def restore(self, plans: Iterable[Plan], commands: Iterable[Command], stopped: bool) -> None:
        """Take over the plans and the kill switch of an earlier Weaver.

        ``commands`` are those that have not ended. Times by a clock that was ahead are shifted.
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
            incarnations = [(command.worker, command.incarnation) for command in own]
            self._plans.opened(plan.verdict, [command.id for command in own], incarnations)
            kind.restored(plan, self._run)
        if stopped:
            self._run.switch.stop()
