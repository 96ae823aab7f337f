"""Derive the rows of a trace bundle from the inputs and verdicts of an incarnation.

:mod:`torchloom_core.lab.trace.recorded.recorded` feeds it every input once, in order.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from torchloom_core.config.schema import Costs
from torchloom_core.lab.trace.bundle.schema import (
    ActionTaken,
    Component,
    Event,
    Job,
    Placement,
    Row,
)
from torchloom_core.wire.actions import Action, name_of
from torchloom_core.wire.decisions import Notice, Outcome, Output, Verdict
from torchloom_core.wire.events import Input, NodeFault
from torchloom_core.wire.messages import Exit, Hello, Note

_NODE, _WORKER = "node", "worker"
_COLUMNS = frozenset(Component.__struct_fields__)
_FAULT_NOTES = frozenset({"fault", "hang"})


class RecordedRows:
    """Topology, job, placement, events and actions of an incarnation, none before its start."""

    def __init__(self, run: str, start_ns: int, costs: Costs) -> None:
        self._run = run
        self._start_ns = start_ns
        self._costs = costs
        self._hello: dict[str, Hello] = {}
        self._components: dict[str, Component] = {}
        self._left_ns: dict[str, int] = {}
        self._placed: dict[str, Placement] = {}
        self._placement: list[Placement] = []
        self._groups: set[str] = set()
        self._events: dict[str, Event] = {}
        self._down: dict[str, str] = {}
        self._actions: dict[str, list[ActionTaken]] = {}

    def component_of(self, worker: str) -> str:
        """Return the component of a worker; "" if it never sent a hello."""
        hello = self._hello.get(worker)
        return f"{hello.node}/{worker}" if hello else ""

    def take(self, message: Input, ts_ns: int, outputs: Iterable[Output]) -> None:
        """Add one input other than telemetry, and its outputs."""
        outputs = tuple(outputs)
        match message:
            case Hello() if any(isinstance(o, Notice) and o.kind == "hello" for o in outputs):
                self._take_hello(message, ts_ns)
            case Exit():
                self._take_exit(message, ts_ns)
            case Note() if message.kind in _FAULT_NOTES and message.worker in self._hello:
                name = f"{message.worker}/{message.kind}:{message.ts_ns}"
                component, extra = self.component_of(message.worker), {"fields": message.fields}
                self._add_event(name, message, ts_ns, component, extra=extra, fatal=False)
            case NodeFault():
                self._add_component(Component(id=message.node, kind=_NODE, from_ns=ts_ns))
                self._add_event(message.id, message, ts_ns, message.node, fatal=False)
        for output in outputs:
            if isinstance(output, Verdict) and output.granted:
                self._actions[output.proposal] = list(self._granted(output, ts_ns))
            elif isinstance(output, Outcome):
                self._end(output, ts_ns)

    def rows(self) -> Iterator[Row]:
        """Yield all rows, after the last input."""
        yield from self._topology()
        if self._groups:
            yield Job(
                id=self._run,
                start_ns=self._start_ns,
                censored=True,
                groups=len(self._groups),
                gpus_per_node=max(1, round(self._costs.gpus_per_worker)),
                checkpoint_s=self._costs.checkpoint_s,
                restart_s=self._costs.restart_s,
            )
        yield from self._placement
        yield from self._placed.values()
        yield from self._events.values()
        for actions in self._actions.values():
            yield from actions

    def _topology(self) -> Iterator[Component]:
        """Yield the components; a node is in service until all its workers have left."""
        workers_on: dict[str, list[str]] = {}
        for component in self._components.values():
            if component.kind == _WORKER:
                workers_on.setdefault(component.parents[0], []).append(component.id)
        for component in self._components.values():
            workers = workers_on.get(component.id, [])
            parts = workers or [component.id]
            left_ns = [self._left_ns[part] for part in parts if part in self._left_ns]
            yield replace(
                component,
                until_ns=max(left_ns) if len(left_ns) == len(parts) else None,
                gpus=round(len(workers) * self._costs.gpus_per_worker),
            )

    def _take_hello(self, hello: Hello, ts_ns: int) -> None:
        before = self._hello.get(hello.worker)
        if before is not None and hello.incarnation == before.incarnation:
            return  # the same process, which a restarted Weaver received for the first time
        self._unplace(hello.worker, ts_ns)
        self._hello[hello.worker] = hello
        name = self.component_of(hello.worker)
        if hello.rack:
            self._add_component(Component(id=hello.rack, kind="rack", from_ns=ts_ns))
        above = (hello.rack,) if hello.rack else ()
        labels = {name: label for name, label in hello.labels.items() if name not in _COLUMNS}
        self._add_component(
            Component(id=hello.node, kind=_NODE, parents=above, from_ns=ts_ns, extra=labels)
        )
        self._add_component(Component(id=name, kind=_WORKER, parents=(hello.node,), from_ns=ts_ns))
        self._left_ns.pop(name, None)
        self._placed[hello.worker] = Placement(
            job=self._run,
            group=hello.group,
            rank=hello.rank,
            role=hello.role,
            stage=hello.stage,
            shard=hello.shard,
            generation=hello.generation,
            component=name,
            from_ns=ts_ns,
        )
        if hello.state != "standby":
            self._groups.add(hello.group)
        fault = self._events.get(self._down.pop(name, ""))
        if fault is not None:
            self._events[fault.id] = replace(fault, t_resolved=ts_ns)

    def _take_exit(self, message: Exit, ts_ns: int) -> None:
        hello = self._hello.get(message.worker)
        if hello is None or message.incarnation != hello.incarnation:
            return
        name = self.component_of(message.worker)
        self._unplace(message.worker, ts_ns)
        if message.expected:
            self._left_ns[name] = ts_ns
            return
        fault = f"{message.worker}/exit:{message.incarnation}"
        code = "" if message.status is None else str(message.status)
        extra = {"step": message.step, "error": message.error}
        self._add_event(fault, message, ts_ns, name, code=code, extra=extra)
        self._down.setdefault(name, fault)

    def _unplace(self, worker: str, ts_ns: int) -> None:
        place = self._placed.pop(worker, None)
        if place is not None and place.from_ns < ts_ns:
            self._placement.append(replace(place, until_ns=ts_ns))

    def _add_component(self, component: Component) -> None:
        self._components.setdefault(component.id, component)

    def _add_event(
        self, name: str, message: Note | NodeFault | Exit, ts_ns: int, component: str, **more: Any
    ) -> None:
        """Add what happened, by the sender's clock, but before its arrival; it may come twice."""
        sent_ns = message.ts_ns
        happened_ns = min(max(sent_ns, self._start_ns), ts_ns) if sent_ns else ts_ns
        kind = "exit" if isinstance(message, Exit) else message.kind
        event = Event(
            id=name, t_event=happened_ns, t_avail=ts_ns, component=component, kind=kind, **more
        )
        self._events.setdefault(name, event)

    def _granted(self, verdict: Verdict, ts_ns: int) -> Iterator[ActionTaken]:
        for component in self._targets(verdict.action):
            yield ActionTaken(
                id=f"{verdict.proposal}/{component}",
                t_event=ts_ns,
                t_avail=ts_ns,
                component=component,
                kind=name_of(verdict.action),
                actor=verdict.policy,
                reason=verdict.reason,
                extra={"action": msgspec.to_builtins(verdict.action)},
            )

    def _targets(self, action: Action) -> list[str]:
        """Return the components of an action's workers, all of them for a run-wide action."""
        worker, group, node = (getattr(action, of, None) for of in ("worker", "group", "node"))
        return [
            self.component_of(hello.worker)
            for hello in self._hello.values()
            if worker in (None, hello.worker)
            and group in (None, hello.group)
            and node in (None, hello.node)
        ]

    def _end(self, outcome: Outcome, ts_ns: int) -> None:
        result = {"result": outcome.result, "detail": outcome.detail}
        self._actions[outcome.verdict] = [
            replace(action, t_end=ts_ns, extra={**action.extra, **result})
            for action in self._actions.get(outcome.verdict, [])
        ]
