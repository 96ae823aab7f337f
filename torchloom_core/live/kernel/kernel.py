"""The deterministic core: one input in, outputs out, no clock, no I/O, no threads.

The Weaver drives it from NATS, a replay from a recorded trajectory; the same inputs in the
same order give the same outputs to the bit. Time is the ``ts_ns`` that comes with an input.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter

import msgspec

from torchloom_core.config.schema import Config
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.persistent_table import Changes
from torchloom_core.interface.needs import Need
from torchloom_core.interface.view import FleetView
from torchloom_core.live.dispatch.answers import Answers, answer_to
from torchloom_core.live.dispatch.candidate import Candidate
from torchloom_core.live.dispatch.commands import Commands
from torchloom_core.live.dispatch.control_lease import ControlLease
from torchloom_core.live.dispatch.deliveries import Deliveries
from torchloom_core.live.dispatch.policy_guard import Guard
from torchloom_core.live.fleet.forecasts import Forecasts
from torchloom_core.live.fleet.guards import TRIES, Guards
from torchloom_core.live.fleet.refused_workers import RefusedWorkers
from torchloom_core.live.fleet.sample_table import SampleTable
from torchloom_core.live.fleet.state import FleetState
from torchloom_core.live.fleet.steering import Steering
from torchloom_core.live.kernel.actions.kinds import kind_of
from torchloom_core.live.kernel.actions.run import Run
from torchloom_core.live.kernel.arbiter import Arbiter
from torchloom_core.live.kernel.execution import Execution
from torchloom_core.live.kernel.plugins.host import ActivePlugins, PolicyHost
from torchloom_core.live.kernel.run_end import RunEnd
from torchloom_core.wire import notices
from torchloom_core.wire.actions import Action, ChangeKnobs
from torchloom_core.wire.commands import RECONCILE, Ack, AckStatus, Command
from torchloom_core.wire.decisions import (
    CordonOver,
    KnobDesired,
    Outcome,
    Output,
    PolicyFailed,
    Proposal,
    Proposed,
    Reply,
    Verdict,
)
from torchloom_core.wire.events import (
    Backlog,
    Control,
    DeliveryStatus,
    Forecast,
    Input,
    NodeFault,
    PredictorFailed,
    RecordingGap,
    Recovered,
    Tick,
    Withheld,
)
from torchloom_core.wire.messages import Exit, Hello, Note, Telemetry
from torchloom_core.wire.operations import Drain, Pause, Probe, SetKnob, done_by
from torchloom_core.wire.plans import ACTIONS_STOPPED
from torchloom_core.wire.requests import (
    GUARD,
    PERSON,
    Approve,
    Deny,
    ForgetKnob,
    Propose,
    Request,
    ResumeActions,
    StopActions,
)
from torchloom_core.wire.steering import LighthouseView, name_of_replica

_UNSENT = "the Weaver ended before it was sent"


class Kernel:
    """Pass telemetry to policies, their proposals to the arbiter, and grants to commands.

    Parameters
    ----------
    config : Config
        The whole configuration; the kernel has no other settings.
    plugins : ActivePlugins
        The active policies and predictors.
    guard : Guard
        What stops a policy that takes too long.
    """

    def __init__(self, config: Config, plugins: ActivePlugins, guard: Guard) -> None:
        settings = config.weaver
        self._predictors = plugins.predictors
        self._numbered = 0
        self.fleet = FleetState(
            [
                *plugins.needs,
                *(Need(metric) for metric in (*settings.show, *config.guard.metrics)),
            ],
            tick_s=settings.tick_s,
            stale_after_s=settings.stale_after_s,
            costs=config.costs,
        )
        self.commands = Commands(config.run.name, settings.command_deadline_s)
        order = config.lighthouse.order if config.lighthouse else ()
        steering = Steering(config.run.name, order)
        guards = Guards(self.fleet, config.guard)
        self.run = Run(self.fleet, self.commands, guards, settings.stale_after_s, steering)
        self.execution = Execution(self.run, config)
        self.arbiter = Arbiter(config.arbiter)
        self.host = PolicyHost(plugins.policies, guard)
        self.forecasts = Forecasts(plugins.predictors)
        self.answers = Answers()
        self.control_lease = ControlLease()
        self.deliveries = Deliveries()
        self._run_end = RunEnd(self.run, self.execution)
        # In the order in which they are stored: a plan before its commands.
        self._stored = (
            self.execution.switch,
            self.run.plans.table,
            self.commands.flights,
            self.arbiter.grants,
            self.run.desired.table,
            self.run.launches.table,
            self.run.guards.watches,
            self.fleet.cordons.cordons,
            self.fleet.fault_log.table,
            self.fleet.links.table,
            self.answers.table,
        )
        self._refused = RefusedWorkers()
        self.seq = 0
        self.ticks = 0

    def step(self, message: Telemetry | SampleTable | Input, ts_ns: int) -> Sequence[Output]:
        """Process one input and return its outputs, in order."""
        self.seq += 1
        if isinstance(message, Telemetry):
            self.fleet.receive(message, ts_ns)
            return ()
        if isinstance(message, SampleTable):
            self.fleet.receive_table(message, ts_ns)
            return ()
        self.run.now_ns = ts_ns
        match message:
            case Tick():
                return self._tick()
            case Ack():
                return self._ack(message)
            case Hello():
                return self._hello(message)
            case Exit():
                return self._exit(message)
            case Note():
                return [*self.fleet.note(message, ts_ns), *self._update_pause(message)]
            case NodeFault():
                fault = self.fleet.note_fault(message)
                return [notices.of_fault(fault)] if fault else ()
            case LighthouseView():
                return self.run.steering.receive(message, self.training_replicas(), ts_ns)
            case Forecast() | PredictorFailed():
                return self.forecasts.take(message)
            case Request():
                return self._request(message)
            case Withheld():
                return self._withhold(message)
            case Backlog():
                self.commands.report_time.take(message, ts_ns)
                return ()
            case DeliveryStatus():
                return self.deliveries.take(message)
            case Recovered():
                return self._recover(message)
            case RecordingGap():
                self.seq = message.last + 1  # differs only when the record is read back
                return [notices.of_gap(message)]
        raise TypeError(f"need a kernel input, was {type(message).__name__}")

    # --- inputs, one by one ---

    def _tick(self) -> list[Output]:
        self.ticks += 1
        outputs: list[Output] = [
            notices.of_unregistered(worker) for worker in self.fleet.close_tick(self.run.now_ns)
        ]
        over = self.fleet.cordons.lift_over(self.run.now_ns)
        outputs += [CordonOver(node=node) for node in over]
        for command_id in self.execution.overdue():
            outputs += self._settle(command_id, "no ack before its deadline")
        outputs += self.run.pauses.check(self.run.now_ns)
        outputs += self._note_failures(self.execution.advance_all())
        outputs += self.execution.offer_to_new_ranks()
        outputs += self._run_end.close()
        outputs += self.control_lease.lapse(self.run.now_ns)
        outputs += self._inherit(*self.run.launches.look(self.run.now_ns))
        outputs += self._correct()
        view = self._view()
        for waiting in list(self.arbiter.waiting):
            outputs += self._withdraw_lapsed(waiting, view)
        proposals, failures = self.host.propose(view, self.seq)
        outputs += failures
        candidates = []
        for active, proposal in proposals:
            proposed = Proposed(id=self._number("p"), policy=active.name, proposal=proposal)
            outputs.append(proposed)
            candidates.append(Candidate(proposed, active.mode, self.run.now_ns))
        outputs += self.arbiter.expired(self.run.now_ns)
        outputs += self._decide(candidates)
        outputs += self.execution.prepare_standbys()
        outputs += self.forecasts.request(self.run.now_ns, lambda: self._number("f"))
        return outputs

    def _view(self) -> FleetView:
        return self.fleet.view(self.run.now_ns, self.forecasts.newest, self.run.steering.view)

    def _withdraw_lapsed(self, proposal_id: str, view: FleetView) -> list[Output]:
        """Withdraw a waiting proposal if its policy gives it up."""
        lapsed = self.host.lapsed(self.arbiter.waiting[proposal_id].proposed, view, self.seq)
        if isinstance(lapsed, PolicyFailed):
            return [lapsed]
        return [self.arbiter.withdraw(proposal_id, "lapsed", lapsed)] if lapsed else []

    def _correct(self) -> list[Output]:
        """Roll back changes that made the run worse, and set knobs again after a restart."""
        outputs: list[Output] = [*self.run.guards.look(self.run.now_ns)]
        for judged in self.run.guards.judge(self.run.now_ns):
            outputs.append(judged)
            if judged.hurt:
                self.arbiter.failed(judged.verdict)
        for watch in self.run.guards.to_take_back(self.run.now_ns):
            which = f" (try {watch.tries} of {TRIES})" if watch.tries > 1 else ""
            reason = f"{watch.verdict} made the run worse: {watch.hurt}{which}"
            outputs += self._propose(ChangeKnobs(values=watch.before), GUARD, reason)
        values = self.execution.unset_values()
        if values:
            outputs += self._propose(ChangeKnobs(values=values), RECONCILE, "set before a restart")
        return outputs

    def _propose(self, action: Action, policy: str, reason: str) -> list[Output]:
        price_gpu_s = kind_of(action).price_gpu_s(action, self.run)
        proposal = Proposal(action=action, reason=reason, cost_gpu_s=price_gpu_s)
        proposed = Proposed(id=self._number("p"), policy=policy, proposal=proposal)
        return [proposed, *self._decide([Candidate(proposed, "act", self.run.now_ns)])]

    def _hello(self, hello: Hello) -> list[Output]:
        before = self.fleet.launch_of(hello.worker)
        is_new = self.fleet.register(hello, self.run.now_ns)
        before = before if is_new else hello.launch  # one incarnation, one launch
        if not self.fleet.is_registered(hello.worker, hello.incarnation):
            return self._refused.notices(hello, self.fleet, self.run.now_ns)
        self.forecasts.settle(hello.worker, hello.node)
        outputs: list[Output] = []
        if is_new:
            outputs.append(notices.of_hello(hello))
        for command_id in self.commands.of_other_incarnations(hello.worker, hello.incarnation):
            outputs += self._settle(command_id, "the worker has restarted")
        outputs += self._inherit(*self.run.launches.register(hello, before, self.run.now_ns))
        outputs += self.execution.reconcile([hello])
        outputs += self.run.pauses.check(self.run.now_ns) + self.run.pauses.stray(hello)
        return outputs + self._advance("")

    def _inherit(self, joined: list[Hello], held: list[KnobDesired]) -> list[Output]:
        """Set the desired knobs of workers of the present job, or report which values wait."""
        outputs: list[Output] = [*held]
        if held:
            notice = notices.of_new_job(held, joined[0].worker)
            outputs += [notice] if self.execution.is_passive else self.run.notify(notice, "new_job")
        return outputs + self.execution.reconcile(joined)

    def _exit(self, message: Exit) -> list[Output]:
        if not self.fleet.end(message, self.run.now_ns):
            # A Weaver that has just taken over may get an exit before the hello.
            return self._end_commands(message, message.incarnation) + self._advance("")
        self._run_end.note(message)
        outputs: list[Output] = [notices.of_exit(message), *self._end_commands(message, None)]
        outputs += self._report_gone(message.worker, f"process of {message.worker} has ended")
        return outputs + self._update_pause(message) + self._advance("")

    def _end_commands(self, message: Exit, incarnation: int | None) -> list[Output]:
        """End the open commands to a worker that has ended, of one incarnation or (None) of any."""
        outputs: list[Output] = []
        for command_id in self.commands.of_other_incarnations(message.worker, None):
            command = self.commands.flights[command_id].command
            if incarnation not in (None, command.incarnation):
                continue
            drains = isinstance(done_by(command.do, self.fleet.group_of(command.worker)), Drain)
            # The exit may come before the last ack: a worker that left was drained.
            status: AckStatus = "applied" if drains and message.expected else "expired"
            if status == "applied" and incarnation is None:
                self.fleet.apply(message.worker, command.do)
            outputs += self._settle(command_id, "the worker has ended", status)
        return outputs

    def _ack(self, ack: Ack) -> list[Output]:
        flight = self.commands.flights.get(ack.command)
        outputs = self.commands.acknowledge(ack)
        if flight is None or ack.command in self.commands.flights:
            return outputs
        if ack.status == "applied" and self.fleet.is_registered(ack.worker, ack.incarnation):
            self.fleet.apply(ack.worker, flight.command.do)
            match done_by(flight.command.do, self.fleet.group_of(ack.worker)):
                case SetKnob() as operation:
                    outputs += self._after_knob(flight.command, operation)
                case Pause():
                    self.run.pauses.applied(ack, flight.command.cause, self.run.now_ns)
                case Drain():
                    outputs += self._report_gone(ack.worker, f"{ack.worker} was drained")
                case Probe() as probe if ack.measured:
                    self.fleet.note_link(ack.worker, probe, ack.measured, self.run.now_ns)
        self.execution.settled(flight.command, ack.status, ack.detail, ack.step)
        return outputs + self._advance(flight.command.cause)

    def _after_knob(self, command: Command, operation: SetKnob) -> list[Output]:
        """Report an older desired value that was set, and correct one that is outdated."""
        desired = self.run.desired.of(command.worker, operation.knob)
        if desired is not None and desired.value == operation.value:
            is_older = command.cause == RECONCILE
            return [notices.of_desired(desired, command.worker)] if is_older else []
        hello = self.fleet.hello[self.fleet.row_of[command.worker]]
        return self.execution.reconcile([hello])

    def _withhold(self, message: Withheld) -> list[Output]:
        outputs: list[Output] = []
        for command_id in message.commands:
            if command_id in self.commands.flights:
                outputs += self._settle(command_id, "withdrawn before it was sent")
        return outputs

    def _request(self, request: Request) -> list[Output]:
        if (repeated := self.answers.repeated(request)) is not None:
            return [repeated]
        outputs = self._grant(request)
        for output in outputs:
            if isinstance(output, Reply):
                self.answers.store(request, output)
        return outputs

    def _grant(self, request: Request) -> list[Output]:
        if (answered := self.control_lease.answer(request, self.run.now_ns)) is not None:
            return answered
        match request.want:
            case StopActions():
                self.execution.stop()
                paused = "; the pause is ended" if self.run.pauses.verdict else ""
                count = len(self.run.plans.table)
                outputs = self._note_failures(self.execution.abandon_all(ACTIONS_STOPPED))
                text = f"actions are stopped; {count} under way called off{paused}"
                if waiting := len(self.run.plans.table):
                    text += f"; {waiting} of them end once their workers have answered"
                return [*outputs, Reply(request=request.id, ok=True, text=text)]
            case ResumeActions():
                self.execution.resume()
                reply = Reply(request=request.id, ok=True, text="actions are resumed")
                return [*self.execution.reconcile(self.fleet.hello), reply]
            case Approve(proposal=proposal_id) | Deny(proposal=proposal_id):
                if proposal_id not in self.arbiter.waiting:
                    text = f"no proposal {proposal_id!r} waits for approval"
                    return [Reply(request=request.id, ok=False, text=text)]
                return self._decide_waiting(request, proposal_id)
            case ForgetKnob(knob=knob, worker=worker):
                forgotten = self.run.desired.forget(knob, worker)
                text = f"{knob} has no desired value now; workers keep their present values"
                if not forgotten:
                    text = f"{knob} had no desired value{f' on {worker}' if worker else ''}"
                return [*forgotten, Reply(request=request.id, ok=bool(forgotten), text=text)]
            case Propose(action=action, sure=sure):
                if not sure and (warning := self._warning(action)):
                    return [Reply(request=request.id, ok=False, text=warning)]
                outputs = self._propose(action, PERSON, f"requested by {request.requester}")
                return [*outputs, answer_to(request, outputs, self.run.plans.table)]
        raise TypeError(f"need a request to the kernel, was {request.want}")

    def _decide_waiting(self, request: Request, proposal_id: str) -> list[Output]:
        """Approve or deny a waiting proposal; one that its policy gave up is withdrawn instead."""
        if isinstance(request.want, Deny):
            why = f"denied by {request.requester}"
            why += f": {request.want.reason}" if request.want.reason else ""
            text = f"{proposal_id} is denied"
            denied = self.arbiter.refuse(proposal_id, why, self.run.now_ns)
            return [denied, Reply(request=request.id, ok=True, text=text)]
        outputs = self._withdraw_lapsed(proposal_id, self._view())
        if proposal_id in self.arbiter.waiting:
            verdict = self.arbiter.approve(
                proposal_id, request.requester, self.execution, self.run.now_ns
            )
            outputs += [verdict, *self._carry_out(verdict)]
        return [*outputs, answer_to(request, outputs, self.run.plans.table)]

    def _warning(self, action: Action) -> str:
        """Return why a person should confirm an action, or an empty string."""
        if self.execution.obstacle(action):
            return ""
        warning = kind_of(action).warning(action, self.run)
        return f'{warning}; to set it anyway: --yes ("sure": true)' if warning else ""

    def _recover(self, message: Recovered) -> list[Output]:
        control = message.control
        self.run.steering.begin(message.epoch)
        commands = [*(flight.command for flight in control.flights), *message.unsent]
        self.execution.restore(control.plans, commands, control.stopped)
        self.arbiter.restore(control.grants, self.run.now_ns)
        self.run.desired.restore(control.desired, self.run.now_ns)
        self.run.launches.restore(control.launches, self.run.now_ns)
        self.fleet.cordons.restore(control.cordoned, control.cordoned_until_ns)
        self.answers.restore(control.answers)
        self.run.guards.restore(control.watches, self.run.now_ns)
        for fault in control.faults:
            self.fleet.fault_log.add(fault)
        self.fleet.links.restore(control.links, self.run.now_ns)
        outputs = self.commands.recover(message.epoch, control.flights, self.run.now_ns)
        for command in message.unsent:
            outputs.append(self.commands.never_sent(command, _UNSENT))
            self.execution.settled(command, "expired", _UNSENT)
        for verdict in message.unstarted:
            outputs += self._note_failures([Outcome.never_started(verdict, _UNSENT)])
        return outputs

    # --- shared steps ---

    def _decide(self, candidates: Iterable[Candidate]) -> list[Output]:
        outputs: list[Output] = []
        for verdict in self.arbiter.decide(candidates, self.execution, self.run.now_ns):
            outputs.append(verdict)
            outputs += self._carry_out(verdict)
        return outputs

    def _carry_out(self, verdict: Verdict) -> list[Output]:
        if not verdict.granted:
            return []
        outputs = self._note_failures(self.execution.supersede(verdict))
        outputs += kind_of(verdict.action).granted(verdict.action, self.run)
        return outputs + self._note_failures(self.execution.start(verdict))

    def _report_gone(self, worker: str, reason: str) -> list[Output]:
        replicas = self.fleet.quorums.replicas([self.fleet.row_of[worker]])
        return self.run.steering.gone(replicas, reason)

    def _update_pause(self, message: Exit | Note) -> list[Output]:
        return self.run.pauses.react(message) + self._advance(self.run.pauses.making)

    def _settle(self, command_id: str, why: str, status: AckStatus = "expired") -> list[Output]:
        command = self.commands.flights[command_id].command
        outputs = self.commands.settle(command_id, status, why)
        self.execution.settled(command, status, why)
        return outputs + self._advance(command.cause)

    def _advance(self, verdict: str) -> list[Output]:
        return self._note_failures(self.execution.advance(verdict))

    def _note_failures(self, outputs: list[Output]) -> list[Output]:
        withdrawn: list[Output] = []
        for output in outputs:
            if isinstance(output, Outcome) and output.result != "done":
                if output.verdict not in self.execution.called_off:
                    self.arbiter.failed(output.verdict)
                if output.result == "undone":
                    began_ns = self.run.now_ns - round(output.took_s * SECOND_NS)
                    withdrawn += kind_of(output.action).undone(output.action, began_ns, self.run)
        return outputs + withdrawn

    def _number(self, prefix: str) -> str:
        self._numbered += 1
        return f"{prefix}{self.commands.epoch}.{self._numbered}"

    # --- read by the Weaver ---

    def training_replicas(self) -> set[str]:
        """Return the lighthouse's names of the training groups."""
        rows = self.run.rows_in("training", "paused")
        return set(map(name_of_replica, self.fleet.quorums.replicas(rows)))

    def predictor_view(self, name: str) -> FleetView:
        """Return a copy of the data that the predictor needs, for use in another thread."""
        return self.fleet.view_copy(self.run.now_ns, self._predictors[name].needs)

    def control(self) -> Control:
        """Return the state that must survive a restart of the Weaver."""
        return Control(
            stopped=self.execution.stopped,
            flights=tuple(self.commands.flights.values()),
            plans=tuple(self.run.plans.table.values()),
            grants=tuple(self.arbiter.grants.values()),
            desired=self.run.desired.snapshot(),
            cordoned=tuple(sorted(self.fleet.cordons.nodes)),
            cordoned_until_ns=dict(sorted(self.fleet.cordons.until_ns.items())),
            faults=tuple(sorted(self.fleet.fault_log.table.values(), key=attrgetter("ts_ns"))),
            answers=tuple(self.answers.table.values()),
            watches=tuple(self.run.guards.watches.values()),
            links=tuple(self.fleet.links.table.values()),
            launches=tuple(self.run.launches.table.values()),
        )

    def changes(self) -> Changes:
        """Return the entries of :meth:`control` that changed since the last call, by key."""
        changes: dict[str, msgspec.Struct | None] = {}
        for table in self._stored:
            changes |= table.take_changes()
        return changes
