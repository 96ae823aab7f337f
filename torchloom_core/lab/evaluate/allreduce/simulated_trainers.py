"""The trainers of a simulated run on a bandwidth trace, for the closed loop.

They report the metrics of a ``CompressedProcessGroup`` under torchft at their heartbeats. They
change ``compression`` by a fenced change as in docs/fence.md: once all trainers have the same offer
at the quorum of a step, they apply it with that step. Their links can be probed.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from torchloom_core.config.evaluation import Allreduce
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.arrays import Floats, Ints
from torchloom_core.lab.evaluate.closed_loop import WorkerMessage
from torchloom_core.lab.simulate.allreduce_run import AllreduceRun, Step, Workload
from torchloom_core.lab.simulate.event_queue import NEVER_NS
from torchloom_core.lab.simulate.links import Links, probe_link
from torchloom_core.live.fleet.samples import SampleTable
from torchloom_core.live.kernel.actions.kinds import kind_of
from torchloom_core.wire.actions import Action
from torchloom_core.wire.commands import Ack, AckStatus, Command
from torchloom_core.wire.decisions import Verdict
from torchloom_core.wire.links import Measured, ProbeAddress, measured_text
from torchloom_core.wire.messages import Hello, KnobSpec
from torchloom_core.wire.operations import FencedChange, Probe, SetKnobs, Withdraw

COMPRESSION = "compression"
_INCARNATION = 1
_NO_STEP = -1
_PROBE_TOKEN = "0" * 64


class _Offer(NamedTuple):
    """A pending change of one trainer, with its command."""

    command: Command
    number: int
    mode: str


def _wire_s(step: Step) -> Floats:
    """Return ``(ranks,)``: the least is the transfer, as the others wait for the slowest rank."""
    wire_s: Floats = step.hidden_s + step.exposed_s + (step.own_s.max() - step.own_s)
    return wire_s


def _loss(step: Step) -> float:
    """Return a synthetic loss that falls with progress, for a guard to watch."""
    return (1.5 + 3.0 / math.sqrt(1.0 + step.progress / 100.0)) * step.luck


_COLUMNS: dict[str, Callable[[Step, Workload], Floats | float]] = {
    "bucket_0_bytes": lambda step, load: load.modes[step.mode].sent_bytes,
    "bucket_0_compress_s": lambda step, load: step.compress_s,
    "bucket_0_wire_s": lambda step, load: _wire_s(step),
    "compress_s": lambda step, load: step.compress_s,
    "compute_s": lambda step, load: step.own_s,
    "gradient_bytes": lambda step, load: load.gradient_bytes,
    "loss": lambda step, load: _loss(step),
    "overlap_s": lambda step, load: step.hidden_s,
    "reductions": lambda step, load: 1.0,
    "sent_bytes": lambda step, load: load.modes[step.mode].sent_bytes,
    "step_time_s": lambda step, load: step.end_s - step.begin_s,
    "wait_s": lambda step, load: step.end_s - step.begin_s - step.own_s,
    "wire_s": lambda step, load: _wire_s(step),
}
METRICS = tuple(_COLUMNS)
"""The metrics of a simulated step, under the names that ranks with torchft report."""


def _measured(step: Step, load: Workload) -> Floats:
    """Return ``(ranks, metrics)`` of a step."""
    ranks = len(step.own_s)
    return np.column_stack([np.broadcast_to(of(step, load), ranks) for of in _COLUMNS.values()])


class SimulatedTrainers:
    """One worker per link; all workers step together.

    ``run`` is a new one, and ends with the progress ``goal``, or at ``limit_s``. ``heartbeats`` is
    ``(workers,)``: the time of each worker's first one, as a share of the heartbeat interval.
    ``probing`` gives the noise of probes. ``end_ns`` is in the far future until the end is known,
    and ``decisions`` counts the granted verdicts that change the run.
    """

    def __init__(
        self,
        run: AllreduceRun,
        job: Allreduce,
        links: Links,
        *,
        name: str,
        goal: float,
        limit_s: float,
        heartbeats: Floats,
        probing: np.random.Generator,
    ) -> None:
        self._run, self._links, self._name, self._mode = run, links, name, job.start
        self._hop_s, self._probing = job.latency_s, probing
        self._probes: list[tuple[int, Ack]] = []
        self._probe_bytes = 0.0
        self._goal, self._limit_ns = goal, links.start_ns + round(limit_s * SECOND_NS)
        self._heartbeat_ns = round(job.heartbeat_s * SECOND_NS)
        self._first_ns: Ints = links.start_ns + (heartbeats * self._heartbeat_ns).astype(np.int64)
        self._beats: Ints = np.full(len(links.workers), -1, dtype=np.int64)
        self._reported: Ints = np.zeros(len(links.workers), dtype=np.int64)
        self._under_way = run.step(job.start)
        self._offers: dict[str, _Offer] = {}
        self._agreed: list[_Offer] = []
        self._done: list[Step] = []
        self._done_ns: list[int] = []
        self._is_registered = False
        self.end_ns = NEVER_NS
        self.decisions = 0

    # --- messages of the trainers ---

    def advance(self, ts_ns: int) -> Iterable[tuple[int, WorkerMessage]]:
        """Simulate steps until ``ts_ns``; return hellos and acks with their times."""
        messages: list[tuple[int, WorkerMessage]] = []
        if not self._is_registered:
            self._is_registered = True
            messages += [(self._links.start_ns, hello) for hello in self._hellos()]
        while self.end_ns == NEVER_NS and self._ns(self._under_way.end_s) <= ts_ns:
            messages += self._end_step()
        if ts_ns >= self._limit_ns:
            self.end_ns = min(self.end_ns, self._limit_ns)
        messages += [probe for probe in self._probes if probe[0] <= ts_ns]
        self._probes = [probe for probe in self._probes if probe[0] > ts_ns]
        return sorted(messages, key=lambda one: one[0])

    def report(self, ts_ns: int) -> SampleTable:
        """Return the samples of the last heartbeats: each worker's newest step, if unreported."""
        beats = (ts_ns - self._first_ns) // self._heartbeat_ns
        has_reported = beats > self._beats
        self._beats = beats
        sent_ns = self._first_ns + beats * self._heartbeat_ns
        newest = [bisect_right(self._done_ns, at_ns) - 1 for at_ns in sent_ns.tolist()]
        load = self._run.workload
        measured = {i: _measured(self._done[i], load) for i in {*newest} - {-1}}
        values: Floats = np.full((len(newest), len(METRICS)), np.nan)
        steps: Ints = np.full(len(newest), _NO_STEP, dtype=np.int64)
        for row, index in enumerate(newest):
            if index >= 0:
                steps[row] = self._done[index].number
            if has_reported[row] and steps[row] > self._reported[row]:
                values[row] = measured[index][row]
                self._reported[row] = steps[row]
        last_ns = self._done_ns[-1] if self._done_ns else self._links.start_ns
        if (reported := min(newest)) > 0:  # no worker needs the steps before it again
            del self._done[:reported], self._done_ns[:reported]
        return SampleTable(
            workers=self._links.workers,
            metrics=METRICS,
            values=values,
            reported=has_reported,
            state=("training",) * len(newest),
            step=steps,
            progress_age_s=(ts_ns - last_ns) / SECOND_NS,
        )

    def _hellos(self) -> Iterator[Hello]:
        links = self._links
        knob = KnobSpec(
            name=COMPRESSION,
            kind="choice",
            choices=tuple(self._run.workload.modes),
            fence="run",
            doc="how gradients are compressed for the allreduce",
        )
        for worker, node, rack in zip(links.workers, links.nodes, links.racks, strict=True):
            yield Hello(
                run=self._name,
                worker=worker,
                incarnation=_INCARNATION,
                group=worker,
                rank=0,
                node=node,
                rack=rack,
                state="training",
                knobs=(knob,),
                values={COMPRESSION: self._mode},
                actuators=("probe", "fenced_change"),
                probe_address=ProbeAddress(host=worker, port=1, token=_PROBE_TOKEN),
                ts_ns=links.start_ns,
            )

    # --- their steps ---

    def _end_step(self) -> Iterator[tuple[int, WorkerMessage]]:
        """End the current step, apply the changes agreed in it, and begin the next step."""
        step, now_ns = self._under_way, self._ns(self._under_way.end_s)
        self._run.finish(step)
        self._done.append(step)
        self._done_ns.append(now_ns)
        for offer in self._agreed:
            self._mode = offer.mode
            yield now_ns, self._ack(offer.command, "applied", now_ns)
        if self._run.progress >= self._goal:
            self.end_ns = now_ns
            return
        for worker in [w for w, o in self._offers.items() if now_ns > o.command.deadline_ns]:
            late = self._offers.pop(worker).command
            yield now_ns, self._ack(late, "expired", now_ns, "the deadline has passed")
        self._agreed = self._vote()
        self._under_way = self._run.step(self._mode, self._probe_bytes)
        self._probe_bytes = 0.0

    def _vote(self) -> list[_Offer]:
        """Return and clear the offers if all trainers hold the same one before a step."""
        offers = list(self._offers.values())
        if len(offers) < len(self._links.workers) or len({one.number for one in offers}) > 1:
            return []
        self._offers.clear()
        return offers

    def _ns(self, since_start_s: float) -> int:
        return self._links.start_ns + round(since_start_s * SECOND_NS)

    # --- commands to the trainers ---

    def execute(self, command: Command, ts_ns: int) -> Iterable[Ack]:
        """Store a change until all trainers have it, withdraw it, or probe a link."""
        problem = ""
        status: AckStatus = "accepted"
        match command.do:
            case FencedChange(number=number, do=SetKnobs(values=values)):
                # It is the only knob, and the kernel has validated the value.
                mode = str(values[COMPRESSION])
                self._offers[command.worker] = _Offer(command, number, mode)
            case Withdraw():
                self._offers.pop(command.worker, None)
                status = "applied"
            case Probe() as probe:
                self._probe(command, probe, ts_ns)
            case operation:
                problem = f"a simulated trainer does not support {operation.__struct_config__.tag}"
        final = self._ack(command, "rejected" if problem else status, ts_ns, problem)
        return [self._ack(command, "delivered", ts_ns), final]

    def _probe(self, command: Command, probe: Probe, ts_ns: int) -> None:
        """Probe a link; its bytes delay the gradients of the next step.

        This is an upper bound of its cost, as transfers during compute cost nothing.
        """
        rows = map(self._links.workers.index, (command.worker, probe.receiver))
        since_s = (ts_ns - self._links.start_ns) / SECOND_NS
        rate = min(self._links.bytes_per_s(row, since_s) for row in rows)
        noise = self._run.workload.noise
        measured, took_s = probe_link(rate, self._hop_s, probe.probe_bytes, noise, self._probing)
        self._probe_bytes = max(self._probe_bytes, rate * took_s)  # no two share a link
        end_ns = ts_ns + round(took_s * SECOND_NS)
        text = measured_text(measured)
        self._probes.append((end_ns, self._ack(command, "applied", end_ns, text, measured)))

    def take_verdict(self, verdict: Verdict, ts_ns: int) -> None:
        """Count granted verdicts that change the run."""
        self.decisions += verdict.granted and kind_of(verdict.action).changes_run

    def uncordon(self, node: str) -> None:
        """Ignore the end of a cordon: the trainers have no spare nodes."""

    def apply(self, action: Action) -> None:
        """Ignore actions without commands."""

    def _ack(
        self,
        command: Command,
        status: AckStatus,
        ts_ns: int,
        detail: str = "",
        measured: Measured | None = None,
    ) -> Ack:
        return Ack(
            command=command.id,
            run=command.run,
            worker=command.worker,
            incarnation=command.incarnation,
            epoch=command.epoch,
            status=status,
            step=self._run.steps,
            detail=detail,
            measured=measured,
            ts_ns=ts_ns,
        )
