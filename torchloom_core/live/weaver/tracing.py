"""OpenTelemetry traces: a proposal, its verdict, commands with their acks, and the outcome.

Ids are derived from those on the record, so the Weaver that takes over goes on with the same trace.
Needs the extra ``tracing``.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from torchloom_core.config.monitoring import Tracing
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.live.kernel.actions.kinds import target_of
from torchloom_core.live.weaver.metrics.seen import Seen
from torchloom_core.live.weaver.plugin_threads import in_own_thread
from torchloom_core.live.weaver.watchers import Watchers
from torchloom_core.wire.actions import name_of
from torchloom_core.wire.commands import FINAL_STATUSES, Command
from torchloom_core.wire.decisions import (
    CommandStatus,
    Issue,
    Outcome,
    Output,
    Proposed,
    Verdict,
)
from torchloom_core.wire.events import Input

_MOST_COMMANDS = 64
"""Spans of commands a proposal; the outcome has the number of all."""

_MOST_OPEN = 10_000
_DENIED_EVERY_NS = 60 * SECOND_NS
_GOODBYE_S = 3.0

_Attributes = Mapping[str, str | bool | float | Sequence[str]]


@dataclass(slots=True)
class _Sent:
    issued_ns: int
    worker: str
    events: list[tuple[str, int]] = field(default_factory=list)


class ProposalTraces:
    """Makes the spans of one Weaver, see Watcher; ``processor`` exports them.

    ``in_flight`` are the commands that it took over.
    """

    def __init__(
        self, run: str, epoch: int, processor: SpanProcessor, in_flight: Iterable[Command] = ()
    ) -> None:
        self._run = run
        self._ids = _Ids()
        resource = Resource.create(
            {"service.name": "torchloom-weaver", "torchloom.run": run, "torchloom.epoch": epoch}
        )
        self.provider = TracerProvider(
            resource=resource, id_generator=self._ids, shutdown_on_exit=False
        )
        self.provider.add_span_processor(processor)
        self._tracer = self.provider.get_tracer("torchloom")
        self._proposed: dict[str, tuple[int, Proposed]] = {}
        self._sent: dict[str, _Sent] = {}
        self._commands: Counter[str] = Counter()
        self._denied_ns: dict[tuple[str, str, str], int] = {}
        for command in in_flight:
            self._begin(command)

    def ticked(self, late_s: float, took_s: float) -> None:
        """Ignore the times of a tick."""

    def took(self, message: Input, outputs: Sequence[Output], ts_ns: int) -> None:
        """Make the spans of what has ended with this input."""
        for output in outputs:
            match output:
                case Proposed(id=id):
                    _bound(self._proposed)
                    self._proposed[id] = ts_ns, output
                case Verdict():
                    self._decided(output, ts_ns)
                case Issue(command=command):
                    self._begin(command)
                case CommandStatus():
                    self._moved(output, ts_ns)
                case Outcome():
                    self._ended(output, ts_ns)

    def _decided(self, verdict: Verdict, ts_ns: int) -> None:
        begin_ns, proposed = self._proposed.get(verdict.proposal, (ts_ns, None))
        target = target_of(verdict.action)
        if not verdict.granted:
            denial = verdict.policy, target, verdict.rule
            if ts_ns < self._denied_ns.get(denial, -_DENIED_EVERY_NS) + _DENIED_EVERY_NS:
                return  # a policy may propose the same at each tick
            _bound(self._denied_ns)
            self._denied_ns[denial] = ts_ns
        name = name_of(verdict.action)
        of = {"torchloom.policy": verdict.policy, "torchloom.action": name}
        if verdict.proposal in self._proposed or proposed is None:
            self._proposed.pop(verdict.proposal, None)
            more: dict[str, str | float | Sequence[str]] = {"torchloom.target": target}
            if proposed is not None:
                more |= {
                    "torchloom.reason": proposed.proposal.reason,
                    "torchloom.cause": proposed.proposal.cause,
                    "torchloom.gain_gpu_s": proposed.proposal.gain_gpu_s,
                    "torchloom.cost_gpu_s": proposed.proposal.cost_gpu_s,
                    "torchloom.confidence": proposed.proposal.confidence,
                }
            self._span(verdict.proposal, "", f"proposal {name}", begin_ns, ts_ns, of | more)
        self._span(
            verdict.proposal,
            f"verdict {verdict.granted} {verdict.rule}",
            "verdict",
            begin_ns,
            ts_ns,
            {
                **of,
                "torchloom.granted": verdict.granted,
                "torchloom.rule": verdict.rule,
                "torchloom.reason": verdict.reason,
                "torchloom.net_gpu_s": verdict.net_gpu_s,
            },
        )

    def _begin(self, command: Command) -> None:
        if command.id in self._sent or not command.cause.startswith("p"):
            return  # a restarted Weaver sends it again; or it sets what was desired before
        self._commands[command.cause] += 1
        if self._commands[command.cause] <= _MOST_COMMANDS:
            _bound(self._sent)
            self._sent[command.id] = _Sent(command.issued_ns, command.worker)
        _bound(self._commands)

    def _moved(self, status: CommandStatus, ts_ns: int) -> None:
        sent = self._sent.get(status.command)
        if sent is None:
            return
        if status.status not in FINAL_STATUSES:
            sent.events.append((status.status, ts_ns))
            return
        del self._sent[status.command]
        self._span(
            status.cause,
            status.command,
            f"command {status.verb}",
            sent.issued_ns,
            ts_ns,
            {
                "torchloom.command": status.command,
                "torchloom.worker": sent.worker,
                "torchloom.status": status.status,
                "torchloom.step": status.step,
                "torchloom.detail": status.detail,
            },
            failed="" if status.status == "applied" else status.status,
            events=sent.events,
        )

    def _ended(self, outcome: Outcome, ts_ns: int) -> None:
        self._span(
            outcome.verdict,
            "outcome",
            "outcome",
            ts_ns - round(outcome.took_s * SECOND_NS),
            ts_ns,
            {
                "torchloom.policy": outcome.policy,
                "torchloom.action": name_of(outcome.action),
                "torchloom.result": outcome.result,
                "torchloom.detail": outcome.detail,
                "torchloom.commands": self._commands.pop(outcome.verdict, 0),
            },
            failed="" if outcome.result == "done" else outcome.result,
        )

    def _span(
        self,
        proposal: str,
        part: str,
        name: str,
        begin_ns: int,
        end_ns: int,
        attributes: _Attributes,
        *,
        failed: str = "",
        events: Sequence[tuple[str, int]] = (),
    ) -> None:
        """Make a span of a proposal's trace; the root is the one of ``part`` ""."""
        trace_id, root_id = self._id(16, proposal), self._id(8, proposal, "root")
        self._ids.trace_id = trace_id
        self._ids.span_id = self._id(8, proposal, part) if part else root_id
        context = Context()
        if part:
            parent = SpanContext(trace_id, root_id, is_remote=True, trace_flags=TraceFlags(1))
            context = set_span_in_context(NonRecordingSpan(parent), context)
        span = self._tracer.start_span(name, context, start_time=begin_ns)
        span.set_attributes({"torchloom.proposal": proposal, **attributes})
        for status, at_ns in events:
            span.add_event(status, timestamp=at_ns)
        if failed:
            span.set_status(Status(StatusCode.ERROR, failed))
        span.end(max(begin_ns, end_ns))

    def _id(self, size: int, *parts: str) -> int:
        text = "\0".join((self._run, *parts)).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=size).digest()) or 1


class _Ids(IdGenerator):
    """Gives the ids that are set before each span."""

    trace_id = span_id = 1

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


def _bound(table: dict[Any, Any]) -> None:
    while len(table) >= _MOST_OPEN:
        del table[next(iter(table))]


@asynccontextmanager
async def tracing(settings: Tracing, seen: Seen, watchers: Watchers) -> AsyncIterator[None]:
    """Export the traces of one Weaver by OTLP over HTTP, in a thread of the exporter's."""
    exporter = OTLPSpanExporter(endpoint=settings.endpoint)
    commands = seen.kernel.commands
    in_flight = (flight.command for flight in commands.flights.values())
    processor = BatchSpanProcessor(exporter)
    traces = ProposalTraces(seen.config.run.name, commands.epoch, processor, in_flight)
    watchers.add(traces)
    try:
        yield
    finally:
        with suppress(asyncio.TimeoutError):
            await in_own_thread("tracing", traces.provider.shutdown, _GOODBYE_S)
