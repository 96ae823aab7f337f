"""The deterministic core: one input in, outputs out, no clock, no I/O, no threads.

The Weaver drives it from NATS, a replay from a recorded trajectory; the same inputs in the
same order give the same outputs to the bit. Time is the ``ts_ns`` that comes with an input.
"""

from collections.abc import Sequence

from torchloom_core.config.schema import Config
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.persistent_table import Changes
from torchloom_core.interface.needs import Need
from torchloom_core.interface.view import FleetView
from torchloom_core.live.dispatch.candidate import Candidate
from torchloom_core.live.dispatch.commands import Commands
from torchloom_core.live.dispatch.deliveries import Deliveries
from torchloom_core.live.dispatch.policy_guard import Guard
from torchloom_core.live.fleet.forecasts import Forecasts
from torchloom_core.live.fleet.guards import TRIES, Guards
from torchloom_core.live.fleet.samples import SampleTable
from torchloom_core.live.fleet.state import FleetState
from torchloom_core.live.fleet.steering import Steering
from torchloom_core.live.kernel.actions.run import Run
from torchloom_core.live.kernel.arbiter import Arbiter
from torchloom_core.live.kernel.decider import Decider
from torchloom_core.live.kernel.execution import Execution
from torchloom_core.live.kernel.kill_switch import KillSwitch
from torchloom_core.live.kernel.plugins.host import ActivePlugins, PolicyHost
from torchloom_core.live.kernel.requests import Requests
from torchloom_core.live.kernel.run_end import RunEnd
from torchloom_core.live.kernel.stored_state import StoredState
from torchloom_core.live.kernel.upkeep import Upkeep
from torchloom_core.wire import notices
from torchloom_core.wire.actions import ChangeKnobs
from torchloom_core.wire.commands import RECONCILE, Ack, AckStatus, Command
from torchloom_core.wire.decisions import CordonOver, KnobDesired, Output, PolicyFailed, Proposed
from torchloom_core.wire.events import (
    Backlog,
    Control,
    DeliveryStatus,
    Forecast,
    Input,
    NodeFault,
    Noticed,
    PredictorFailed,
    RecordingGap,
    Recovered,
    Tick,
    Withheld,
)
from torchloom_core.wire.messages import Exit, Hello, Note, Telemetry
from torchloom_core.wire.operations import Drain, Pause, Probe, SetKnob, done_by
from torchloom_core.wire.programs import ProgramSeen
from torchloom_core.wire.requests import GUARD, Request
from torchloom_core.wire.steering import LighthouseView, name_of_replica

_FULL_EVERY_NS = 60 * SECOND_NS
_NEW_JOB = "a new job has begun"


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
        self.fleet = FleetState(
            [*plugins.needs, *map(Need, config.metrics_kept)],
            tick_s=settings.tick_s,
            stale_after_s=settings.stale_after_s,
            costs=config.costs,
            forget_after_s=settings.forget_after_s,
        )
        self.commands = Commands(config.run.name, settings.command_deadline_s)
        order = config.lighthouse.order if config.lighthouse else ()
        steering = Steering(config.run.name, order)
        guards = Guards(self.fleet, config.guard)
        switch = KillSwitch(config.arbiter.dry_run)
        self.run = Run(self.fleet, self.commands, guards, settings.stale_after_s, steering, switch)
        self._upkeep = Upkeep(self.run)
        self.execution = Execution(self.run, self._upkeep, config)
        self.arbiter = Arbiter(config.arbiter, config.roles)
        self.host = PolicyHost(plugins.policies, guard)
        self.forecasts = Forecasts(plugins.predictors)
        self.deliveries = Deliveries()
        self._decider = Decider(self.run, self.arbiter, self.execution)
        self.requests = Requests(
            self.run,
            self.arbiter,
            self.execution,
            self._upkeep,
            self._decider,
            lambda proposal: self._withdraw_lapsed(proposal, self._view()),
        )
        self._stored = StoredState(self.run, self.arbiter, self.execution, self.requests.answers)
        self._run_end = RunEnd(self.run)
        self._reported_full_ns = -_FULL_EVERY_NS
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
                return self.run.steering.receive(message, self.training_replicas, ts_ns)
            case Forecast() | PredictorFailed():
                return self.forecasts.take(message)
            case Request():
                return self.requests.answer(message)
            case ProgramSeen():
                return self.fleet.programs.take(message, ts_ns)
            case Withheld():
                return self._withhold(message)
            case Backlog():
                self.commands.report_time.take(message, ts_ns)
                return ()
            case DeliveryStatus():
                return self.deliveries.take(message)
            case Recovered():
                return self._decider.note_failures(self._stored.restore(message))
            case RecordingGap():
                self.seq = message.last + 1  # differs only when the record is read back
                return [notices.of_gap(message)]
            case Noticed():
                return [notices.of_noticed(message)]
        raise TypeError(f"need a kernel input, was {type(message).__name__}")

    # --- inputs, one by one ---

    def _tick(self) -> list[Output]:
        self.ticks += 1
        strangers = self.fleet.close_tick(self.run.now_ns)
        outputs: list[Output] = [*notices.of_unregistered(strangers)]
        outputs += [CordonOver(node=node) for node in self.fleet.cordons.lift_over(self.run.now_ns)]
        for command_id in self.execution.overdue():
            outputs += self._decider.settle(command_id, "no ack before its deadline")
        outputs += self.run.pauses.check(self.run.now_ns)
        outputs += self._decider.note_failures(self.execution.advance_all())
        outputs += self._upkeep.suspended()
        outputs += self.execution.offer_to_new_ranks() + self._run_end.close()
        outputs += self.requests.control_lease.lapse(self.run.now_ns)
        outputs += self._inherit(*self.run.launches.look(self.run.now_ns))
        outputs += self._correct()
        view = self._view()
        for waiting in list(self.arbiter.waiting):
            outputs += self._withdraw_lapsed(waiting, view)
        proposals, failures = self.host.propose(view, self.seq)
        outputs += failures
        candidates = []
        for active, proposal in proposals:
            proposed = Proposed(id=self._decider.number("p"), policy=active.name, proposal=proposal)
            outputs.append(proposed)
            candidates.append(Candidate(proposed, active.mode, self.run.now_ns))
        outputs += self.arbiter.expired(self.run.now_ns)
        outputs += self._decider.decide(candidates)
        outputs += self._upkeep.prepare_standbys()
        outputs += self.forecasts.request(self.run.now_ns, lambda: self._decider.number("f"))
        return outputs

    def _view(self) -> FleetView:
        steering, suspended = self.run.steering.view, self.run.suspensions.by_role()
        return self.fleet.view(self.run.now_ns, self.forecasts.newest, steering, suspended)

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
            back = ChangeKnobs(values=watch.before, role=self.run.named(watch.role))
            outputs += self._decider.propose(back, GUARD, reason)
        for role, values in self._upkeep.unset_values().items():
            again = ChangeKnobs(values=values, role=self.run.named(role))
            outputs += self._decider.propose(again, RECONCILE, "set before a restart")
        return outputs

    def _hello(self, hello: Hello) -> list[Output]:
        before = self.fleet.launch_of(hello.worker)
        is_new = self.fleet.register(hello, self.run.now_ns)
        before = before if is_new else hello.launch  # one incarnation, one launch
        if not self.fleet.is_registered(hello.worker, hello.incarnation):
            return self._report_full(hello)
        self.forecasts.settle(hello.worker, hello.node)
        outputs = self._upkeep.forget_long_gone(self.forecasts)
        if is_new:
            outputs.append(notices.of_hello(hello))
            outputs += self.host.notice_role(hello)
        for command_id in self.commands.of_other_incarnations(hello.worker, hello.incarnation):
            outputs += self._decider.settle(command_id, "the worker has restarted")
        outputs += self._inherit(*self.run.launches.register(hello, before, self.run.now_ns))
        outputs += self._upkeep.reconcile([hello])
        outputs += self.run.pauses.check(self.run.now_ns, hello.worker)
        outputs += self.run.pauses.stray(hello)
        return outputs + self._decider.advance("")

    def _report_full(self, hello: Hello) -> list[Output]:
        """Report a worker that has no row as the run is full, once a minute at most."""
        now_ns = self.run.now_ns
        if hello.worker in self.fleet.row_of or now_ns < self._reported_full_ns + _FULL_EVERY_NS:
            return []
        self._reported_full_ns = now_ns
        return [notices.of_refused(hello)]

    def _inherit(self, joined: list[Hello], held: list[KnobDesired]) -> list[Output]:
        """Set the desired knobs of workers of the present job, or report which values wait."""
        outputs: list[Output] = [*held]
        if began_ns := self.run.launches.new_job_ns:
            self.run.launches.new_job_ns = 0
            outputs += self.run.guards.end_all(_NEW_JOB)
            outputs += self.execution.end_before(began_ns, _NEW_JOB)
        if held:
            notice = notices.of_new_job(held, joined[0].worker)
            is_passive = self.run.switch.is_passive
            outputs += [notice] if is_passive else self.run.notify(notice, "new_job")
        return outputs + self._upkeep.reconcile(joined)

    def _exit(self, message: Exit) -> list[Output]:
        if not self.fleet.end(message, self.run.now_ns):
            # A Weaver that has just taken over may get an exit before the hello.
            return self._end_commands(message, message.incarnation) + self._decider.advance("")
        self._run_end.note(message)
        outputs: list[Output] = [notices.of_exit(message), *self._end_commands(message, None)]
        outputs += self._report_gone(message.worker, f"process of {message.worker} has ended")
        outputs += self.run.suspensions.react(message)
        return outputs + self._update_pause(message) + self._decider.advance("")

    def _end_commands(self, message: Exit, incarnation: int | None) -> list[Output]:
        """End the open commands to a worker that has ended, of one incarnation or (None) of any."""
        outputs: list[Output] = []
        for command_id in self.commands.of_other_incarnations(message.worker, None):
            command = self.commands.flights[command_id].command
            if incarnation not in (None, command.incarnation):
                continue
            drains = isinstance(done_by(command.do, self.fleet.group_of(command.worker)), Drain)
            # The exit may come before the last ack: a worker that left was drained.
            has_left = message.expected and not message.status
            status: AckStatus = "applied" if drains and has_left else "expired"
            if status == "applied" and incarnation is None:
                self.fleet.apply(message.worker, command.do)
            outputs += self._decider.settle(command_id, "the worker has ended", status)
        return outputs

    def _ack(self, ack: Ack) -> list[Output]:
        flight = self.commands.flights.get(ack.command)
        outputs = self.commands.acknowledge(ack)
        if flight is None or ack.command in self.commands.flights:
            return outputs
        if ack.status == "applied" and self.fleet.is_registered(ack.worker, ack.incarnation):
            self.run.guards.know_before(flight.command.cause, ack.before or {})
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
        return outputs + self._decider.advance(flight.command.cause)

    def _after_knob(self, command: Command, operation: SetKnob) -> list[Output]:
        """Report an older desired value that was set, and correct one that is outdated."""
        hello = self.fleet.hello[self.fleet.row_of[command.worker]]
        desired = self.run.desired.of(command.worker, operation.knob, hello.role)
        if desired is not None and desired.value == operation.value:
            is_older = command.cause == RECONCILE
            return [notices.of_desired(desired, command.worker)] if is_older else []
        return self._upkeep.reconcile([hello])

    def _withhold(self, message: Withheld) -> list[Output]:
        outputs: list[Output] = []
        for command_id in message.commands:
            if command_id in self.commands.flights:
                outputs += self._decider.settle(command_id, "withdrawn before it was sent")
        return outputs

    # --- shared steps ---

    def _report_gone(self, worker: str, reason: str) -> list[Output]:
        replicas = self.fleet.quorums.replicas([self.fleet.row_of[worker]])
        return self.run.steering.gone(replicas, reason)

    def _update_pause(self, message: Exit | Note) -> list[Output]:
        outputs = self.run.pauses.react(message)
        for verdict in self.run.pauses.makings or ("",):
            outputs += self._decider.advance(verdict)
        return outputs

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
        return self._stored.control()

    def changes(self) -> Changes:
        """Return the entries of :meth:`control` that changed since the last call, by key."""
        return self._stored.changes()
