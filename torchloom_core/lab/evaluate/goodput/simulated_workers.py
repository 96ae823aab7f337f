"""The workers of the fleet model, with the messages that their Threadlets would send.

The driver collects their messages, and passes commands to them.
"""

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.arrays import Floats
from torchloom_core.lab.simulate.answer import answer_of, answering, brought_verbs
from torchloom_core.lab.simulate.model import INTERVAL_KNOB, FleetModel
from torchloom_core.lab.simulate.records import FleetEvent, Member
from torchloom_core.live.fleet.samples import SampleTable
from torchloom_core.wire.actions import name_of
from torchloom_core.wire.commands import RECONCILE, Ack, AckStatus, Command
from torchloom_core.wire.decisions import Verdict
from torchloom_core.wire.messages import Exit, Hello, WorkerState
from torchloom_core.wire.operations import Operation

ACTUATORS = ("drain", "pause", "resume", "set_knob", "checkpoint", "join")
"""The verbs that every worker supports, beside those that other packages bring."""

_OVER = ("left", "gone")
_SAVING_EVENTS = ("committed", "restarted")
"""Events after which there is no unsaved work."""

WorkerMessage = Hello | Exit | SampleTable


class SimulatedWorkers:
    """The present workers, and their states as reported to the kernel.

    ``labels_of`` has the static labels of each node; ``members`` every worker that ever sent a
    hello, in that order.
    """

    def __init__(
        self, model: FleetModel, run: str, labels_of: Mapping[str, Mapping[str, str | float]]
    ) -> None:
        self._model, self._run = model, run
        self._labels_of = labels_of
        self._version = -1
        self._reported: dict[str, Member] = {}
        self._incarnation: dict[str, int] = {}
        self._workers: tuple[str, ...] = ()
        self._states: tuple[str, ...] = ()
        self._is_present: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        self._kind_of = {RECONCILE: "knob"}
        self._done: dict[tuple[str, str, str], str] = {}
        self._saved_ns = model.now_ns
        self.members: tuple[Member, ...] = ()

    # --- messages of the workers ---

    def messages(
        self, fleet_events: Sequence[FleetEvent], now_ns: int
    ) -> list[tuple[int, WorkerMessage]]:
        """Return exits at their own times, and hellos and states, which arrive at ``now_ns``."""
        for fleet_event in fleet_events:
            if fleet_event.kind in _SAVING_EVENTS:
                self._saved_ns = fleet_event.ts_ns
        if self._model.version == self._version:
            return []
        self._version = self._model.version
        lost_ns = {h.detail: h.ts_ns for h in fleet_events if h.kind == "worker_lost"}
        exits: list[tuple[int, WorkerMessage]] = []
        hellos: list[tuple[int, WorkerMessage]] = []
        joined: list[tuple[int, WorkerMessage]] = []
        for member in self._model.workers():
            before = self._reported.get(member.worker)
            if before is member or (before is None and member.state in _OVER):
                continue
            self._reported[member.worker] = member
            is_same = _is_same_process(before, member)
            if before is not None and before.state not in _OVER and not is_same:
                at_ns = lost_ns.get(member.worker, now_ns)
                exits.append((at_ns, self._exit(member, at_ns)))
            if member.state in _OVER:
                continue
            if not is_same:
                self._incarnation[member.worker] = self._incarnation.get(member.worker, 0) + 1
                hellos.append((now_ns, self._hello(member, now_ns)))
            elif before is not None and before.state == "standby" != member.state:
                # Sent at once, as after a reconnect: its plan would wait for the next tick.
                joined.append((now_ns, self._hello(member, now_ns)))
        self.members = tuple(self._reported.values())
        self._states = tuple(member.state for member in self.members)
        self._is_present = np.array([state not in _OVER for state in self._states], dtype=np.bool_)
        if len(self._workers) < len(self.members):
            self._workers = tuple(self._reported)
        exits.sort(key=lambda timed: timed[0])
        states = self.sample((), np.empty((len(self.members), 0)))
        return [*exits, *hellos, (now_ns, states), *joined]

    def sample(self, metrics: tuple[str, ...], values: Floats) -> SampleTable:
        """Return the samples of all workers, with values ``(members, metrics)``."""
        return SampleTable(
            workers=self._workers,
            metrics=metrics,
            values=values,
            reported=self._is_present,
            state=self._states,
            step=np.full(len(self._states), self._model.step, dtype=np.int64),
        )

    def unsaved_s(self, now_ns: int) -> Floats:
        """Return ``(members,)``: seconds since all work was saved or lost, NaN without work."""
        unsaved_s = (now_ns - self._saved_ns) / SECOND_NS
        works = np.array([state in ("training", "paused") for state in self._states])
        return np.where(works, unsaved_s, np.nan)

    def _hello(self, member: Member, now_ns: int) -> Hello:
        return Hello(
            run=self._run,
            worker=member.worker,
            incarnation=self._incarnation[member.worker],
            group=member.group,
            rank=member.rank,
            node=member.node,
            rack=member.rack,
            labels=dict(self._labels_of.get(member.node, {})),
            state=cast(WorkerState, member.state),
            knobs=(INTERVAL_KNOB,),
            values={INTERVAL_KNOB.name: self._model.checkpoint_interval_s},
            actuators=(*ACTUATORS, *brought_verbs()),
            ts_ns=now_ns,
        )

    def _exit(self, member: Member, at_ns: int) -> Exit:
        return Exit(
            run=self._run,
            worker=member.worker,
            incarnation=self._incarnation[member.worker],
            status=None,
            expected=member.state == "left",
            step=self._model.step,
            ts_ns=at_ns,
        )

    # --- commands to the workers ---

    def expect(self, granted: Verdict) -> None:
        """Store the kind of action of a verdict, for its commands."""
        self._kind_of[granted.proposal] = name_of(granted.action)

    def execute(self, command: Command, ts_ns: int) -> list[Ack]:
        """Execute a command; return its acks."""
        if command.incarnation != self._incarnation.get(command.worker):
            problem = "the worker has started another incarnation"
        elif self._reported[command.worker].state in _OVER:
            problem = "the worker has ended"
        else:
            problem = self._do(command)
        steps: tuple[AckStatus, ...] = ("delivered", "accepted", "applied")
        if problem:
            steps = ("delivered", "rejected")
        return [
            Ack(
                command=command.id,
                run=command.run,
                worker=command.worker,
                incarnation=command.incarnation,
                epoch=command.epoch,
                status=status,
                step=self._model.step,
                detail=problem if status == "rejected" else "",
                ts_ns=ts_ns,
            )
            for status in steps
        ]

    def _do(self, command: Command) -> str:
        """Do an operation once for all workers that share it; return why not, or ""."""
        operation = command.do
        name = self._kind_of[command.cause]
        answer = answer_of(name)
        of_group = answer.of_group.get(type(operation))
        of_run = answer.of_run.get(type(operation), _not_simulated)
        verb = str(operation.__struct_config__.tag)
        group = self._reported[command.worker].group if of_group else ""
        key = (command.cause, verb, group)
        if key not in self._done or command.cause == RECONCILE:
            with answering(name):
                self._done[key] = (
                    of_group(self._model, group) if of_group else of_run(self._model, operation)
                )
        return self._done[key]


def _not_simulated(model: FleetModel, operation: Operation) -> str:
    return f"the fleet model does not simulate {operation.__struct_config__.tag}"


def _is_same_process(before: Member | None, now: Member) -> bool:
    """Return whether the worker is present with the same incarnation as before."""
    return (
        before is not None
        and before.state not in _OVER
        and now.state not in _OVER
        and before.incarnation == now.incarnation
    )
