"""The trainers of a simulated run as the closed loop drives them.

They report what a ``CompressedProcessGroup`` under torchft reports, at the heartbeats at which
their sidecars would, and change ``compression`` as docs/fence.md has it: all hold what they are
offered as they ask for the quorum of a step, and make it with that step. Their links can be probed.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from torchloom_core.clock import SECOND_NS
from torchloom_core.config.schema import Allreduce
from torchloom_core.evaluate.allreduce.step_metrics import METRICS, measured_of
from torchloom_core.evaluate.closed_loop import News
from torchloom_core.fleet.sample_table import SampleTable
from torchloom_core.kernel.actions.kinds import kind_of
from torchloom_core.plugin.arrays import Floats, Ints
from torchloom_core.simulate.allreduce_run import AllreduceRun, Step
from torchloom_core.simulate.event_queue import NEVER_NS
from torchloom_core.simulate.link_probe import probe_link
from torchloom_core.simulate.links import Links
from torchloom_core.wire.actions import Action
from torchloom_core.wire.events import Verdict
from torchloom_core.wire.links import Measured, ProbeAddress, measured_text
from torchloom_core.wire.messages import (
    Ack,
    AckStatus,
    Command,
    FencedChange,
    Hello,
    KnobSpec,
    Probe,
    SetKnobs,
    Withdraw,
)

COMPRESSION = "compression"
_LIFE = 1
_NO_STEP = -1
_PROBE_TOKEN = "0" * 64


class _Offer(NamedTuple):
    """A change that one trainer holds, and the command that it came by."""

    command: Command
    number: int
    mode: str


class SimulatedTrainers:
    """One worker a link, all of which step together.

    Parameters
    ----------
    run : AllreduceRun
        Just made.
    job : Allreduce
        How it begins, and how often workers report.
    name : str
        Of the run.
    goal : float
        The progress with which the run is over.
    limit_s : float
        When it is over in any case.
    heartbeats : (workers,) float64
        When in its first interval each worker has its first heartbeat, as a share of it.
    probing : np.random.Generator
        Of the noise in what probes measure.

    Attributes
    ----------
    end_ns : int
        When the run is over, far away as long as it is not.
    decisions : int
        Granted verdicts that change something.
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
        self._told: Ints = np.zeros(len(links.workers), dtype=np.int64)
        self._under_way = run.step(job.start)
        self._held: dict[str, _Offer] = {}
        self._agreed: list[_Offer] = []
        self._done: list[Step] = []
        self._done_ns: list[int] = []
        self._is_known = False
        self.end_ns = NEVER_NS
        self.decisions = 0

    # --- what they say ---

    def advance(self, ts_ns: int) -> Iterable[tuple[int, News]]:
        """Let them step until ``ts_ns``; return hellos, and the acks of what they did."""
        news: list[tuple[int, News]] = []
        if not self._is_known:
            self._is_known = True
            news += [(self._links.start_ns, hello) for hello in self._hellos()]
        while self.end_ns == NEVER_NS and self._ns(self._under_way.end_s) <= ts_ns:
            news += self._end_step()
        if ts_ns >= self._limit_ns:
            self.end_ns = min(self.end_ns, self._limit_ns)
        news += [probe for probe in self._probes if probe[0] <= ts_ns]
        self._probes = [probe for probe in self._probes if probe[0] > ts_ns]
        return sorted(news, key=lambda one: one[0])

    def report(self, ts_ns: int) -> SampleTable:
        """Return what each has sent with its last heartbeat: its newest step, if it is news."""
        beats = (ts_ns - self._first_ns) // self._heartbeat_ns
        heard = beats > self._beats
        self._beats = beats
        sent_ns = self._first_ns + beats * self._heartbeat_ns
        newest = [bisect_right(self._done_ns, at_ns) - 1 for at_ns in sent_ns.tolist()]
        load = self._run.workload
        measured = {i: measured_of(self._done[i], load) for i in {*newest} - {-1}}
        values: Floats = np.full((len(newest), len(METRICS)), np.nan)
        steps: Ints = np.full(len(newest), _NO_STEP, dtype=np.int64)
        for row, index in enumerate(newest):
            if index >= 0:
                steps[row] = self._done[index].number
            if heard[row] and steps[row] > self._told[row]:
                values[row] = measured[index][row]
                self._told[row] = steps[row]
        last_ns = self._done_ns[-1] if self._done_ns else self._links.start_ns
        self._forget(min(newest))
        return SampleTable(
            workers=self._links.workers,
            metrics=METRICS,
            values=values,
            heard=heard,
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
                incarnation=_LIFE,
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

    def _end_step(self) -> Iterator[tuple[int, News]]:
        """End the step under way with what was agreed on in it, and begin the next."""
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
        for worker in [w for w, o in self._held.items() if now_ns > o.command.deadline_ns]:
            late = self._held.pop(worker).command
            yield now_ns, self._ack(late, "expired", now_ns, "it came too late")
        self._agreed = self._vote()
        self._under_way = self._run.step(self._mode, self._probe_bytes)
        self._probe_bytes = 0.0

    def _vote(self) -> list[_Offer]:
        """Return what all hold, ahead of a step; it is held no longer."""
        held = list(self._held.values())
        if len(held) < len(self._links.workers) or len({offer.number for offer in held}) > 1:
            return []
        self._held.clear()
        return held

    def _forget(self, before: int) -> None:
        """Drop steps that every worker has reported."""
        if before > 0:
            del self._done[:before], self._done_ns[:before]

    def _ns(self, since_start_s: float) -> int:
        return self._links.start_ns + round(since_start_s * SECOND_NS)

    # --- what they are told ---

    def obey(self, command: Command, ts_ns: int) -> Iterable[Ack]:
        """Hold a change until all hold it, or let go of it."""
        trouble = ""
        status: AckStatus = "accepted"
        match command.do:
            case FencedChange(number=number, do=SetKnobs(values=values)):
                # It is the only knob that they have, and the kernel has checked its value.
                mode = str(values[COMPRESSION])
                self._held[command.worker] = _Offer(command, number, mode)
            case Withdraw():
                self._held.pop(command.worker, None)
                status = "applied"
            case Probe() as probe:
                self._probe(command, probe, ts_ns)
            case operation:
                trouble = f"a simulated trainer does no {operation.__struct_config__.tag}"
        final = self._ack(command, "rejected" if trouble else status, ts_ns, trouble)
        return [self._ack(command, "delivered", ts_ns), final]

    def _probe(self, command: Command, probe: Probe, ts_ns: int) -> None:
        """Measure a link; what is sent for it, the next step's gradients wait for.

        That is the most it can cost: what goes while all compute costs nothing.
        """
        rows = map(self._links.workers.index, (command.worker, probe.receiver))
        since_s = (ts_ns - self._links.start_ns) / SECOND_NS
        rate = min(self._links.own.bytes_per_s(row, since_s) for row in rows)
        noise = self._run.workload.noise
        measured, took_s = probe_link(rate, self._hop_s, probe.probe_bytes, noise, self._probing)
        self._probe_bytes = max(self._probe_bytes, rate * took_s)  # no two share a link
        end_ns = ts_ns + round(took_s * SECOND_NS)
        text = measured_text(measured)
        self._probes.append((end_ns, self._ack(command, "applied", end_ns, text, measured)))

    def judged(self, verdict: Verdict, ts_ns: int) -> None:
        """Count what is to be changed."""
        self.decisions += verdict.granted and kind_of(verdict.action).changes_run

    def done(self, action: Action) -> None:
        """Nothing that the Weaver does by itself concerns them."""

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
