"""The state of the fleet in the kernel: workers, their nodes, states and telemetry."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from torchloom_core.config.schema import Costs
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.arrays import Floats, Ints, frozen
from torchloom_core.interface.needs import PolicyNeed, fault_memory_s, forecasts_read, notes_read
from torchloom_core.interface.view import FleetView
from torchloom_core.interface.view_parts import Conditions, KnownFaults, KnownKnobs, Roster
from torchloom_core.live.fleet.cordons import Cordons
from torchloom_core.live.fleet.crash_loops import NOTE as RESTART
from torchloom_core.live.fleet.crash_loops import CrashLoops
from torchloom_core.live.fleet.fault_log import FaultLog
from torchloom_core.live.fleet.intake import Intake, NewestBatches
from torchloom_core.live.fleet.links import MeasuredLinks
from torchloom_core.live.fleet.programs import Programs
from torchloom_core.live.fleet.rings import Rings
from torchloom_core.live.fleet.samples import SampleStretch, SampleTable
from torchloom_core.live.fleet.strangers import Strangers
from torchloom_core.live.fleet.workers import Workers
from torchloom_core.wire import notices
from torchloom_core.wire.decisions import Notice
from torchloom_core.wire.events import Fault, Forecast, NodeFault
from torchloom_core.wire.limits import KnobValue
from torchloom_core.wire.links import Link, Measured
from torchloom_core.wire.messages import Exit, Hello, KnobSpec, Note, Telemetry
from torchloom_core.wire.operations import Probe
from torchloom_core.wire.steering import LighthouseView

_FAULT_NOTES = frozenset({"fault", "hang"})


class FleetState(Workers):
    """The workers with their telemetry, faults and links, and the views that policies read.

    Attributes
    ----------
    costs : Costs
        What failures and actions cost, from the config.
    cordons : Cordons
        Cordoned nodes.
    fault_log : FaultLog
        Recent faults of workers and nodes.
    links : MeasuredLinks
        Measured links between workers.
    crash_loops : CrashLoops
        Ranks that the launcher restarts and that end before they attach.
    programs : Programs
        Programs that are split over workers.
    strangers : Strangers
        Workers that send telemetry and have not registered.
    """

    def __init__(
        self,
        needs: Sequence[PolicyNeed],
        *,
        tick_s: float,
        stale_after_s: float,
        costs: Costs,
        forget_after_s: float = 86_400.0,
    ) -> None:
        super().__init__(stale_after_s, forget_after_s)
        self._intake = Intake(needs, tick_s, stale_after_s)
        self._predictors = tuple({need.predictor: None for need in forecasts_read(needs)})
        self._notes: dict[str, dict[int, Note]] = {kind: {} for kind in notes_read(needs)}
        self._tick_s = tick_s
        self.costs = costs
        self._table_rows: tuple[tuple[str, ...], NDArray[np.intp]] = ((), np.zeros(0, np.intp))
        self._roster: Roster | None = None
        self.cordons = Cordons()
        self.fault_log = FaultLog(fault_memory_s(needs))
        self.links = MeasuredLinks()
        self.crash_loops = CrashLoops()
        self.programs = Programs()
        self.strangers = Strangers()

    def register(self, hello: Hello, ts_ns: int) -> bool:
        """Register a hello; return whether it begins an incarnation."""
        begins = super().register(hello, ts_ns)
        if not self.is_registered(hello.worker, hello.incarnation):
            return False
        row, self._roster = self.row_of[hello.worker], None
        self.links.settle(hello.worker, hello.node)
        if begins:
            self._intake.metrics.grow(self.times.capacity)
            self._intake.metrics.forget(row)
            self.crash_loops.forget(row)
            for newest in self._notes.values():
                newest.pop(row, None)
        return begins

    def _forget(self, row: int) -> None:
        self.links.forget(self.hello[row].worker)
        self._table_rows = ((), np.zeros(0, np.intp))
        super()._forget(row)

    def end(self, message: Exit, ts_ns: int) -> bool:
        """Mark a worker's process as ended; return False if it is not the known incarnation."""
        ended = super().end(message, ts_ns)
        if ended and not message.expected:
            self._add_fault(message.worker, "exit", ts_ns, f"exit:{message.incarnation}")
        return ended

    def last_column(self, metric: str) -> Floats:
        """Return ``(workers,)`` values of a declared metric at the last tick, NaN if missing."""
        metrics = self._intake.metrics
        metrics.workers = len(self.hello)
        return metrics.window(metric, self._tick_s)[:, -1]

    def note(self, note: Note, ts_ns: int) -> list[Notice]:
        """Apply a note of a known incarnation; return notices for people."""
        if not self.is_registered(note.worker, note.incarnation):
            return []
        if note.kind in self._notes:
            self._notes[note.kind][self.row_of[note.worker]] = note
        row = self.row_of[note.worker]
        if note.kind == RESTART and self.state[row] == "gone":
            loop = self.crash_loops.add(row, self.hello[row], note)
            self.times.seen_ns[row] = ts_ns
            return [Notice(kind="crash_loop", text=loop.text, worker=note.worker)]
        if note.kind not in _FAULT_NOTES:
            return []
        fault = self._add_fault(note.worker, note.kind, ts_ns, f"{note.kind}:{note.ts_ns}")
        return [notices.of_fault(fault, str(note.fields.get("what", "")))] if fault else []

    def note_fault(self, message: NodeFault) -> Fault | None:
        """Add a fault reported for a node, with or without workers on it."""
        fault = Fault(
            worker="",
            node=message.node,
            kind=message.kind,
            ts_ns=message.ts_ns,
            id=message.id,
            fatal=message.fatal,
        )
        return fault if self.fault_log.add(fault) else None

    def _add_fault(self, worker: str, kind: str, ts_ns: int, suffix: str) -> Fault | None:
        node = self.hello[self.row_of[worker]].node
        fault = Fault(
            worker=worker,
            node=node,
            kind=kind,
            ts_ns=ts_ns,
            id=f"{worker}/{suffix}",
            fatal=kind != "fault",  # a note of that kind reports no end
        )
        return fault if self.fault_log.add(fault) else None

    def note_link(self, sender: str, probe: Probe, measured: Measured, ts_ns: int) -> None:
        """Store the result of a probe by a known sender, unless its receiver has changed since."""
        row = self.row_of.get(probe.receiver)
        if row is None or self.hello[row].probe_address != probe.probe_address:
            return
        link = Link(
            sender=sender,
            sender_node=self.hello[self.row_of[sender]].node,
            receiver=probe.receiver,
            receiver_node=self.hello[row].node,
            measured=measured,
            ts_ns=ts_ns,
        )
        self.links.add(link)

    def nodes(self) -> set[str]:
        """Return every known node: those of workers, and those with faults."""
        nodes = {hello.node for hello in self.hello}
        nodes.update(faults[0].node for faults in self.fault_log.faults_of.values())
        return nodes - {""}

    def receive(self, batch: Telemetry, ts_ns: int) -> None:
        """Take a batch; its newest sample reaches the columns when the tick closes."""
        self._intake.take(batch, ts_ns)

    def receive_table(self, table: SampleTable, ts_ns: int) -> None:
        """Take one sample of many workers straight into the coming column.

        Raises
        ------
        KeyError
            If a worker of the table never sent a hello.
        """
        rows = self._rows_of(table.workers)
        mask = slice(None) if table.reported is None else table.reported
        reported = np.arange(len(rows))[mask]
        rows = rows[reported]
        stamps: Ints = np.full(len(rows), ts_ns, dtype=np.int64)
        self._intake.put(rows, table.metrics, table.values[reported], stamps)
        self.times.seen_ns[rows] = ts_ns
        self.times.first_ns[rows[self.times.first_ns[rows] == 0]] = ts_ns
        self.times.progress_ns[rows] = ts_ns - round(table.progress_age_s * SECOND_NS)
        if table.step is not None:
            self.times.step[rows] = table.step[reported]
        if table.state is not None:
            for row, index in zip(rows.tolist(), reported.tolist(), strict=True):
                self.see(row, table.state[index])

    def receive_stretch(self, stretch: SampleStretch) -> None:
        """Take the samples of several ticks, and close each of them.

        Raises
        ------
        KeyError
            If a worker of the stretch never sent a hello.
        """
        rows, reported, ts_ns = self._rows_of(stretch.workers), stretch.reported, stretch.ts_ns
        self._intake.extend(rows, stretch, len(self.hello))
        came = reported.any(axis=0)
        rows, first, last = rows[came], reported.argmax(axis=0), reported[::-1].argmax(axis=0)
        self.times.seen_ns[rows] = self.times.progress_ns[rows] = ts_ns[len(ts_ns) - 1 - last[came]]
        new = self.times.first_ns[rows] == 0
        self.times.first_ns[rows[new]] = ts_ns[first[came][new]]
        self.fault_log.forget_old(int(ts_ns[-1]))

    def _rows_of(self, workers: tuple[str, ...]) -> NDArray[np.intp]:
        if workers is not self._table_rows[0]:
            rows = np.array([self.row_of[worker] for worker in workers], dtype=np.intp)
            self._table_rows = (workers, rows)
        return self._table_rows[1]

    def close_tick(self, now_ns: int) -> list[str]:
        """Write the tick's telemetry into the columns; return the workers that lack a hello."""
        newest, strangers = self._intake.close_column(
            self.row_of, self.hello, lambda row, one: self._may_begin(row, one, now_ns)
        )
        self._apply(newest)
        self.fault_log.forget_old(now_ns)
        if self.is_full:  # its new workers are not asked for a hello
            strangers = [worker for worker in strangers if worker in self.row_of]
        self.strangers.note(strangers, now_ns)
        return strangers

    def _apply(self, newest: NewestBatches) -> None:
        for row, (batch, ts_ns) in newest.items():
            self.see(row, batch.state)
            self.times.mark_seen(row, ts_ns)
            self.times.step[row] = batch.step
            self.times.progress_ns[row] = ts_ns - round(batch.progress_age_s * SECOND_NS)
        rows = np.fromiter(newest, np.intp, len(newest))
        for row in rows[self.times.first_ns[rows] == 0].tolist():
            self.times.first_ns[row] = newest[row][1]

    def view(
        self,
        now_ns: int,
        forecasts: Mapping[str, Forecast],
        lighthouse: LighthouseView | None = None,
        suspended: Mapping[str, str] = MappingProxyType({}),
    ) -> FleetView:
        """Return the view for policies at this tick."""
        view = self._view(now_ns, forecasts, self._intake.metrics, tuple(self.knobs))
        view.programs, view.suspended = self.programs.of, suspended
        if lighthouse is not None:
            view.lighthouse = self.quorums.seen_by(lighthouse)
        return view

    def view_copy(self, now_ns: int, needs: Iterable[PolicyNeed]) -> FleetView:
        """Return an independent view, for a predictor that runs in another thread."""
        metrics = self._intake.metrics
        metrics.now_ns, metrics.workers = now_ns, len(self.hello)
        knobs = tuple(dict(values) for values in self.knobs)
        return self._view(now_ns, {}, metrics.copy(needs), knobs)

    def _view(
        self,
        now_ns: int,
        forecasts: Mapping[str, Forecast],
        metrics: Rings,
        knobs: tuple[Mapping[str, KnobValue], ...],
    ) -> FleetView:
        workers = len(self.hello)
        metrics.now_ns, metrics.workers = now_ns, workers
        return FleetView(
            now_ns=now_ns,
            tick_s=self._tick_s,
            costs=self.costs,
            roster=self.roster,
            conditions=Conditions(tuple(self.state), *self.times.columns(now_ns, workers)),
            metrics=metrics,
            knobs=KnownKnobs(self.knob_specs, knobs, self._specs_by_role()),
            forecasts={name: forecasts.get(name) for name in self._predictors},
            faults=KnownFaults(self.fault_log.faults, self.fault_log.faults_of),
            cordoned=self.cordons.nodes,
            links_of=self.links.of.copy(),
            notes={kind: dict(found) for kind, found in self._notes.items()},
        )

    def _specs_by_role(self) -> dict[str, dict[str, KnobSpec]]:
        roles = self.roles
        return {role: self.specs_of(role) for role in roles} if len(roles) > 1 else {}

    @property
    def roster(self) -> Roster:
        """The workers and their placements: the same object until a worker registers."""
        if self._roster is None:
            can_be_probed = (hello.probe_address is not None for hello in self.hello)
            self._roster = Roster(
                workers=tuple(hello.worker for hello in self.hello),
                placement=tuple(self.hello),
                labels=tuple(MappingProxyType(hello.labels) for hello in self.hello),
                can_be_probed=frozen(np.fromiter(can_be_probed, bool, len(self.hello))),
            )
        return self._roster
