"""The kernel's state that survives a restart of the Weaver."""

from operator import attrgetter

import msgspec

from torchloom_core.floor.persistent_table import Changes
from torchloom_core.live.dispatch.answers import Answers
from torchloom_core.live.kernel.actions.run import Run
from torchloom_core.live.kernel.arbiter import Arbiter
from torchloom_core.live.kernel.execution import Execution
from torchloom_core.wire.decisions import Outcome, Output
from torchloom_core.wire.events import Control, Recovered

_UNSENT = "the Weaver ended before it was sent"


class StoredState:
    """The tables of the kernel's parts, stored and restored together."""

    def __init__(self, run: Run, arbiter: Arbiter, execution: Execution, answers: Answers) -> None:
        self._run = run
        self._arbiter = arbiter
        self._execution = execution
        self._answers = answers
        # In the order in which they are stored: a plan before its commands.
        self._stored = (
            self._run.switch.table,
            self._run.plans.table,
            self._run.commands.flights,
            self._arbiter.grants,
            self._run.desired.table,
            self._run.launches.table,
            self._run.suspensions.table,
            self._run.guards.watches,
            self._run.fleet.cordons.cordons,
            self._run.fleet.fault_log.table,
            self._run.fleet.links.table,
            self._answers.table,
        )

    def restore(self, message: Recovered) -> list[Output]:
        """Take over the state of the Weaver before, and end what it never sent."""
        control = message.control
        self._run.steering.begin(message.epoch)
        commands = [*(flight.command for flight in control.flights), *message.unsent]
        self._execution.restore(control.plans, commands, control.stopped)
        self._arbiter.restore(control.grants, self._run.now_ns)
        self._run.desired.restore(control.desired, self._run.now_ns)
        self._run.launches.restore(control.launches, self._run.now_ns)
        self._run.fleet.cordons.restore(control.cordoned, control.cordoned_until_ns)
        self._run.suspensions.restore(control.suspensions)
        self._answers.restore(control.answers)
        self._run.guards.restore(control.watches, self._run.now_ns)
        for fault in control.faults:
            self._run.fleet.fault_log.add(fault)
        self._run.fleet.links.restore(control.links, self._run.now_ns)
        outputs = self._run.commands.recover(message.epoch, control.flights, self._run.now_ns)
        for command in message.unsent:
            outputs.append(self._run.commands.never_sent(command, _UNSENT))
            self._execution.settled(command, "expired", _UNSENT)
        for verdict in message.unstarted:
            outputs += [Outcome.never_started(verdict, _UNSENT)]
        return outputs

    def control(self) -> Control:
        """Return the state that must survive a restart of the Weaver."""
        return Control(
            stopped=self._run.switch.stopped,
            flights=tuple(self._run.commands.flights.values()),
            plans=tuple(self._run.plans.table.values()),
            grants=tuple(self._arbiter.grants.values()),
            desired=self._run.desired.snapshot(),
            cordoned=tuple(sorted(self._run.fleet.cordons.nodes)),
            cordoned_until_ns=dict(sorted(self._run.fleet.cordons.until_ns.items())),
            faults=tuple(sorted(self._run.fleet.fault_log.table.values(), key=attrgetter("ts_ns"))),
            answers=tuple(self._answers.table.values()),
            watches=tuple(self._run.guards.watches.values()),
            links=tuple(self._run.fleet.links.table.values()),
            launches=tuple(self._run.launches.table.values()),
            suspensions=tuple(self._run.suspensions.table.values()),
        )

    def changes(self) -> Changes:
        """Return the entries of :meth:`control` that changed since the last call, by key."""
        changes: dict[str, msgspec.Struct | None] = {}
        for table in self._stored:
            changes |= table.take_changes()
        return changes
