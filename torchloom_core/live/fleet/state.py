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
from torchloom_core.live.fleet.cordons import Cordons
from torchloom_core.live.fleet.crash_loops import NOTE as RESTART
from torchloom_core.live.fleet.crash_loops import CrashLoops
from torchloom_core.live.fleet.declared_knobs import DeclaredKnobs
from torchloom_core.live.fleet.fault_log import FaultLog, fault_of_worker
from torchloom_core.live.fleet.incarnations import Incarnations
from torchloom_core.live.fleet.intake import Intake, NewestBatches
from torchloom_core.live.fleet.links import MeasuredLinks
from torchloom_core.live.fleet.quorums import Quorums
from torchloom_core.live.fleet.rings import Rings
from torchloom_core.live.fleet.sample_stretch import SampleStretch
from torchloom_core.live.fleet.sample_table import SampleTable
from torchloom_core.wire import notices
from torchloom_core.wire.decisions import Notice
from torchloom_core.wire.endings import in_a_word
from torchloom_core.wire.events import Fault, Forecast, NodeFault
from torchloom_core.wire.limits import MAX_WORKERS, KnobValue
from torchloom_core.wire.links import Link, Measured
from torchloom_core.wire.messages import Exit, Hello, KnobSpec, Note, Telemetry
from torchloom_core.wire.operations import (
    Drain,
    Join,
    Operation,
    Pause,
    Probe,
    Resume,
    SetKnob,
    SetKnobs,
    done_by,
)
from torchloom_core.wire.steering import LighthouseView

_OVER = frozenset({"left", "gone"})
"""Final states of an incarnation."""
_STATE_AFTER: dict[type, str] = {
    Drain: "left",
    Join: "joining",
    Pause: "paused",
    Resume: "training",
}
_Names = tuple[str, ...]
_Labels = tuple[Mapping[str, str | float], ...]
_Where = tuple[_Names, _Names, _Names, _Names, _Labels, NDArray[np.bool_]]

_FAULT_NOTES = frozenset({"fault", "hang"})

_GAP_NS = 5 * SECOND_NS
"""After a longer gap in a worker's reports, earlier messages may still arrive for as long."""


class FleetState:
    """Every worker that ever registered, one row each, with its last reports.

    Attributes
    ----------
    row_of : dict of str to int
        Worker to its row.
    hello, state, knobs : list
        The last report of each row.
    ending : list of str
        How each row's incarnation ended: ``drained``, or the word of
        :func:`~torchloom_core.wire.endings.in_a_word`; "" before.
    cordons : Cordons
        Cordoned nodes.
    fault_log : FaultLog
        Recent faults of workers and nodes.
    links : MeasuredLinks
        Measured links between workers.
    quorums : Quorums
        The quorum of each worker.
    crash_loops : CrashLoops
        Ranks that the launcher restarts and that end before they attach.
    """

    def __init__(
        self,
        needs: Sequence[PolicyNeed],
        *,
        tick_s: float,
        stale_after_s: float,
        costs: Costs,
    ) -> None:
        self._intake = Intake(needs, tick_s, stale_after_s)
        self._predictors = frozenset(need.predictor for need in forecasts_read(needs))
        self._notes: dict[str, dict[int, Note]] = {kind: {} for kind in notes_read(needs)}
        self._tick_s = tick_s
        self._stale_ns = round(stale_after_s * SECOND_NS)
        self._costs = costs
        self._capacity = 0
        self._seen_ns: Ints = np.zeros(0, dtype=np.int64)
        self._since_ns: Ints = np.zeros(0, dtype=np.int64)
        self._progress_ns: Ints = np.zeros(0, dtype=np.int64)
        self._step: Ints = np.zeros(0, dtype=np.int64)
        self._first_ns: Ints = np.zeros(0, dtype=np.int64)
        self._table_rows: tuple[tuple[str, ...], NDArray[np.intp]] = ((), np.zeros(0, np.intp))
        self._where: _Where | None = None
        self._incarnations = Incarnations()
        self._declared = DeclaredKnobs()
        self.row_of: dict[str, int] = {}
        self.hello: list[Hello] = []
        self.state: list[str] = []
        self.ending: list[str] = []
        self.knobs: list[dict[str, KnobValue]] = []
        self.cordons = Cordons()
        self.fault_log = FaultLog(fault_memory_s(needs))
        self.links = MeasuredLinks()
        self.quorums = Quorums(self.hello)
        self.crash_loops = CrashLoops()

    def register(self, hello: Hello, ts_ns: int) -> bool:
        """Register a hello; return whether it begins an incarnation.

        A hello is ignored if its incarnation may not follow the known one, or if it is a new
        worker's and the run is full.
        """
        row = self.row_of.get(hello.worker)
        if row is None and self.is_full:
            return False
        begins = row is None or self._may_begin(row, hello.incarnation, ts_ns)
        if row is None:
            row = self._add_row(hello)
        elif begins:
            self._incarnations.note(row, self.hello[row].incarnation, ended=self.is_over(row))
            self._intake.forget(row)
        elif self.hello[row].incarnation != hello.incarnation:
            return False
        if self.state[row] != "gone":
            self._declared.remove(self.hello[row].knobs)
        self.quorums.register(hello, self.hello[row])
        self.links.settle(hello.worker, hello.node)
        self.hello[row] = hello
        self.knobs[row] = dict(hello.values)
        self._where = None
        self._mark_seen(row, ts_ns)
        if begins:
            self.crash_loops.forget(row)
            self.state[row] = hello.state
            self.ending[row] = ""
            self._progress_ns[row] = ts_ns
            self._step[row] = -1
            for newest in self._notes.values():
                newest.pop(row, None)
        if self.state[row] != "gone":
            self._declared.add(hello.knobs)
        return begins

    @property
    def is_full(self) -> bool:
        """Whether the run has reached its limit of workers, counting all that ever registered."""
        return len(self.hello) >= MAX_WORKERS

    def _add_row(self, hello: Hello) -> int:
        row = self.row_of[hello.worker] = len(self.hello)
        self._grow(row + 1)
        self.hello.append(hello)
        self.state.append("gone")
        self.ending.append("")
        self.knobs.append({})
        return row

    def _may_begin(self, row: int, incarnation: int, ts_ns: int) -> bool:
        """Return whether an incarnation may replace the known one in ``row``."""
        vacant = self.is_over(row) or self._seen_ns[row] < ts_ns - self._stale_ns
        present = self.hello[row].incarnation
        return self._incarnations.may_follow(row, incarnation, present, vacant=bool(vacant))

    def end(self, message: Exit, ts_ns: int) -> bool:
        """Mark a worker's process as ended; return False if it is not the known incarnation."""
        row = self.row_of.get(message.worker)
        if row is None:
            return False
        if not self.is_registered(message.worker, message.incarnation):
            self._incarnations.note(row, message.incarnation, ended=True)
            return False
        if self.state[row] == "gone":
            return False
        self._declared.remove(self.hello[row].knobs)
        self.state[row] = "gone"
        self.ending[row] = self.ending[row] or in_a_word(
            message.status, expected=message.expected, error=message.error
        )
        self._seen_ns[row] = ts_ns
        if not message.expected:
            self._add_fault(message.worker, "exit", ts_ns, f"exit:{message.incarnation}")
        return True

    def apply(self, worker: str, operation: Operation) -> None:
        """Apply an operation that a worker has just done, before its telemetry shows it."""
        row = self.row_of[worker]
        done = done_by(operation, self.hello[row].group)
        if isinstance(done, Drain):
            self.ending[row] = "drained"
        if isinstance(done, SetKnob):
            self.knobs[row][done.knob] = done.value
        elif isinstance(done, SetKnobs):
            self.knobs[row].update(done.values)
        elif self.state[row] != "gone":
            self.state[row] = _STATE_AFTER.get(type(done), self.state[row])

    def last_column(self, metric: str) -> Floats:
        """Return ``(workers,)`` values of a declared metric at the last tick, NaN if missing."""
        metrics = self._intake.metrics
        metrics.workers = len(self.hello)
        return metrics.window(metric, self._tick_s)[:, -1]

    def group_of(self, worker: str) -> str:
        """Return the replica group of a worker, empty before its hello."""
        row = self.row_of.get(worker)
        return "" if row is None else self.hello[row].group

    def launch_of(self, worker: str) -> str:
        """Return the launch of a worker's known incarnation; "" before its hello."""
        row = self.row_of.get(worker)
        return "" if row is None else self.hello[row].launch

    def note(self, note: Note, ts_ns: int) -> list[Notice]:
        """Apply a note of a known incarnation; return notices for people."""
        if not self.is_registered(note.worker, note.incarnation):
            return []
        if note.kind in self._notes:
            self._notes[note.kind][self.row_of[note.worker]] = note
        row = self.row_of[note.worker]
        if note.kind == RESTART and self.state[row] == "gone":
            loop = self.crash_loops.add(row, self.hello[row], note)
            self._seen_ns[row] = ts_ns
            return [notices.of_crash_loop(loop.text, note.worker)]
        if note.kind not in _FAULT_NOTES:
            return []
        fault = self._add_fault(note.worker, note.kind, ts_ns, f"{note.kind}:{note.ts_ns}")
        return [notices.of_fault(fault)] if fault else []

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
        fault = fault_of_worker(worker, node, kind, ts_ns, suffix)
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

    def is_over(self, row: int) -> bool:
        """Return whether the worker in ``row`` has left or its process has ended."""
        return self.state[row] in _OVER

    def is_training(self, worker: str) -> bool:
        """Return whether the worker is known and training."""
        row = self.row_of.get(worker)
        return row is not None and self.state[row] == "training"

    def is_gone(self, worker: str, incarnation: int | None = None) -> bool:
        """Return whether the worker, or this incarnation of it, is known to have ended."""
        row = self.row_of.get(worker)
        if row is None:
            return False
        another = incarnation not in (None, self.hello[row].incarnation)
        return another or self.state[row] == "gone"

    def nodes(self) -> set[str]:
        """Return every known node: those of workers, and those with faults."""
        nodes = {hello.node for hello in self.hello}
        nodes.update(faults[0].node for faults in self.fault_log.faults_of.values())
        return nodes - {""}

    def is_registered(self, worker: str, incarnation: int) -> bool:
        """Return whether this is the registered incarnation of the worker."""
        row = self.row_of.get(worker)
        return row is not None and self.hello[row].incarnation == incarnation

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
        self._seen_ns[rows] = ts_ns
        self._first_ns[rows[self._first_ns[rows] == 0]] = ts_ns
        self._progress_ns[rows] = ts_ns - round(table.progress_age_s * SECOND_NS)
        if table.step is not None:
            self._step[rows] = table.step[reported]
        if table.state is not None:
            for row, index in zip(rows.tolist(), reported.tolist(), strict=True):
                self._see(row, table.state[index])

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
        self._seen_ns[rows] = self._progress_ns[rows] = ts_ns[len(ts_ns) - 1 - last[came]]
        new = self._first_ns[rows] == 0
        self._first_ns[rows[new]] = ts_ns[first[came][new]]
        self.fault_log.forget_old(int(ts_ns[-1]))

    def _rows_of(self, workers: tuple[str, ...]) -> NDArray[np.intp]:
        if workers is not self._table_rows[0]:
            rows = np.array([self.row_of[worker] for worker in workers], dtype=np.intp)
            self._table_rows = (workers, rows)
        return self._table_rows[1]

    def close_tick(self, now_ns: int) -> list[str]:
        """Write the tick's telemetry into the columns; return workers that have to send a hello."""
        newest, strangers = self._intake.close_column(
            self.row_of, self.hello, lambda row, one: self._may_begin(row, one, now_ns)
        )
        self._apply(newest)
        self.fault_log.forget_old(now_ns)
        # New workers of a full run are not asked for a hello.
        return [w for w in strangers if w in self.row_of] if self.is_full else strangers

    def _apply(self, newest: NewestBatches) -> None:
        for row, (batch, ts_ns) in newest.items():
            self._see(row, batch.state)
            self._mark_seen(row, ts_ns)
            self._step[row] = batch.step
            self._progress_ns[row] = ts_ns - round(batch.progress_age_s * SECOND_NS)
        rows = np.fromiter(newest, np.intp, len(newest))
        for row in rows[self._first_ns[rows] == 0].tolist():
            self._first_ns[row] = newest[row][1]

    def _mark_seen(self, row: int, ts_ns: int) -> None:
        if ts_ns > self._seen_ns[row] + _GAP_NS:
            self._since_ns[row] = ts_ns
        self._seen_ns[row] = ts_ns

    def _see(self, row: int, state: str) -> None:
        """Set the state that a worker reports, unless the report is outdated."""
        present = self.state[row]
        if present not in _OVER and (state != "standby" or present == "standby"):
            self.state[row] = state

    def view(
        self,
        now_ns: int,
        forecasts: Mapping[str, Forecast],
        lighthouse: LighthouseView | None = None,
    ) -> FleetView:
        """Return the view for policies at this tick."""
        view = self._view(now_ns, forecasts, self._intake.metrics, tuple(self.knobs))
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
        if self._where is None:
            hellos = self.hello
            self._where = (
                tuple(self.row_of),
                tuple(h.group for h in hellos),
                tuple(h.node for h in hellos),
                tuple(h.rack for h in hellos),
                tuple(MappingProxyType(h.labels) for h in hellos),
                frozen(
                    np.fromiter((h.probe_address is not None for h in hellos), bool, len(hellos))
                ),
            )
        names, group, node, rack, labels, can_be_probed = self._where
        return FleetView(
            now_ns=now_ns,
            tick_s=self._tick_s,
            workers=names,
            group=group,
            node=node,
            rack=rack,
            labels=labels,
            state=tuple(self.state),
            step=frozen(self._step[:workers].copy()),
            heartbeat_age_s=frozen((now_ns - self._seen_ns[:workers]) / SECOND_NS),
            progress_age_s=frozen((now_ns - self._progress_ns[:workers]) / SECOND_NS),
            watched_s=self._watched_s(now_ns, workers),
            metrics=metrics,
            knob_specs=self.knob_specs,
            knob_values=knobs,
            forecasts=forecasts,
            predictors=self._predictors,
            faults=self.fault_log.faults,
            faults_of=self.fault_log.faults_of,
            costs=self._costs,
            cordoned=self.cordons.nodes,
            links_of=self.links.of.copy(),
            can_be_probed=can_be_probed,
            notes={kind: dict(newest) for kind, newest in self._notes.items()},
        )

    def _watched_s(self, now_ns: int, workers: int) -> Floats:
        first_ns = self._first_ns[:workers]
        return frozen(np.where(first_ns > 0, (now_ns - first_ns) / SECOND_NS, np.nan))

    @property
    def knob_specs(self) -> dict[str, KnobSpec]:
        """Every knob of present workers, with the spec that most of them declare."""
        return self._declared.specs

    def knob_specs_by_use(self) -> list[KnobSpec]:
        """Return the same, those declared by most workers first."""
        return self._declared.by_use()

    def groups(self, *states: str) -> dict[str, list[int]]:
        """Return the rows of every replica group whose workers are all in ``states``."""
        rows: dict[str, list[int]] = {}
        for row, hello in enumerate(self.hello):
            if self.state[row] not in _OVER:
                rows.setdefault(hello.group, []).append(row)
        return {
            group: members
            for group, members in rows.items()
            if all(self.state[row] in states for row in members)
        }

    def alive(self, worker: str, now_ns: int) -> int | None:
        """Return the worker's incarnation if it is reachable and has not ended."""
        row = self.row_of.get(worker)
        if row is None or self.state[row] == "gone":
            return None
        if self._seen_ns[row] < now_ns - self._stale_ns:
            return None
        return self.hello[row].incarnation

    def last_seen_ns(self, row: int) -> int:
        """Return the time of the last message from the worker in ``row``."""
        return int(self._seen_ns[row])

    def is_settled(self, row: int, now_ns: int) -> bool:
        """Return whether the worker has reported long enough for earlier messages to arrive."""
        return bool(self._since_ns[row] <= now_ns - _GAP_NS <= self._seen_ns[row])

    def current_steps(self, rows: Sequence[int], now_ns: int) -> tuple[Ints, Ints]:
        """Return the reachable ones of the rows that have reported a step, and the steps."""
        at = np.asarray(rows, dtype=np.int64)
        at = at[(self._seen_ns[at] >= now_ns - self._stale_ns) & (self._step[at] >= 0)]
        return at, self._step[at]

    def progress_ns(self, rows: Sequence[int]) -> int:
        """Return the median time at which the workers in these rows last finished a step."""
        return int(np.median(self._progress_ns[rows]))

    def _grow(self, workers: int) -> None:
        if workers <= self._capacity:
            return
        self._capacity = max(16, 2 * self._capacity)
        more = self._capacity - len(self._step)
        self._seen_ns = np.pad(self._seen_ns, (0, more))
        self._since_ns = np.pad(self._since_ns, (0, more))
        self._progress_ns = np.pad(self._progress_ns, (0, more))
        self._step = np.pad(self._step, (0, more), constant_values=-1)
        self._first_ns = np.pad(self._first_ns, (0, more))
        self._intake.grow(self._capacity)
