"""A proposal is one trace from its cause to its outcome, also over a restart of the Weaver."""

import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import nats
import pytest

from tests.deadlines import DEADLINE_S
from tests.settled import settle
from tests.waiting import eventually
from torchloom_core.capabilities.cordon import CordonNode
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.live.transport.security.credentials import Credentials
from torchloom_core.wire import codec, subjects
from torchloom_core.wire.commands import Ack, Command
from torchloom_core.wire.decisions import (
    CommandStatus,
    Issue,
    Outcome,
    Proposal,
    Proposed,
    Verdict,
)
from torchloom_core.wire.events import Tick
from torchloom_core.wire.messages import Hello, KnobSpec
from torchloom_core.wire.operations import SetKnob

export = pytest.importorskip("opentelemetry.sdk.trace.export")
in_memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
tracing = pytest.importorskip("torchloom_core.live.weaver.tracing")

ACTION = CordonNode(node="n1")
COMMAND = Command(
    id="c1.1", run="run", worker="g0-0", incarnation=1, epoch=1, issued_ns=3 * SECOND_NS,
    deadline_ns=60 * SECOND_NS, do=SetKnob(knob="lr", value=0.2), cause="p1.1",
)  # fmt: skip


class Traces:
    def __init__(self, epoch, in_flight=()):
        self._exporter = in_memory.InMemorySpanExporter()
        processor = export.SimpleSpanProcessor(self._exporter)
        self._traces = tracing.ProposalTraces("run", epoch, processor, in_flight)

    def take(self, second, *outputs):
        self._traces.took(Tick(), outputs, second * SECOND_NS)

    @property
    def spans(self):
        return self._exporter.get_finished_spans()


def verdict(*, granted=True, proposal="p1.1"):
    return Verdict(proposal=proposal, policy="x", action=ACTION, granted=granted,
                   rule="granted" if granted else "cooldown", reason="", net_gpu_s=1.0)  # fmt: skip


def status(word):
    return CommandStatus(
        command="c1.1", worker="g0-0", status=word, verb="set_knob", cause="p1.1", step=7
    )


def test_a_trace_goes_on_after_a_restart_under_the_same_ids():
    first = Traces(1)
    proposal = Proposal(action=ACTION, reason="hot", cause=("f1.1",))
    first.take(1, Proposed(id="p1.1", policy="x", proposal=proposal))
    first.take(2, verdict())
    first.take(3, Issue(command=COMMAND))
    second = Traces(2, [COMMAND])
    second.take(5, Issue(command=COMMAND), status("delivered"))
    second.take(6, status("applied"))
    outcome = Outcome(
        verdict="p1.1", policy="x", action=ACTION, result="done", detail="", took_s=4.0
    )
    second.take(6, outcome)
    root, *others = (*first.spans, *second.spans)
    assert [s.name for s in others] == ["verdict", "command set_knob", "outcome"]
    assert {s.context.trace_id for s in others} == {root.context.trace_id}
    assert {s.parent.span_id for s in others} == {root.context.span_id}
    assert (root.parent, root.attributes["torchloom.cause"]) == (None, ("f1.1",))
    _, command, ended = others
    assert (command.start_time, command.end_time) == (3 * SECOND_NS, 6 * SECOND_NS)
    assert [(e.name, e.timestamp) for e in command.events] == [("delivered", 5 * SECOND_NS)]
    assert (ended.start_time, ended.attributes["torchloom.commands"]) == (2 * SECOND_NS, 1)


def test_a_denial_that_is_repeated_at_each_tick_is_one_trace_a_minute():
    traces = Traces(1)
    for second in range(120):
        traces.take(second, verdict(granted=False, proposal=f"p1.{second}"))
    assert [s.name for s in traces.spans] == ["proposal cordon", "verdict"] * 2


def test_a_command_to_very_many_workers_is_a_bounded_number_of_spans():
    traces = Traces(1)
    for number in range(1000):
        own = Command(**{f: getattr(COMMAND, f) for f in COMMAND.__struct_fields__ if f != "id"},
                      id=f"c1.{number}")  # fmt: skip
        traces.take(3, Issue(command=own))
        final = {f: getattr(status("applied"), f) for f in CommandStatus.__struct_fields__}
        traces.take(4, CommandStatus(**(final | {"command": own.id})))
    assert len(traces.spans) == 64


@pytest.fixture
def collector():
    got = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            request = service.ExportTraceServiceRequest.FromString(body)
            for resource in request.resource_spans:
                got.extend(span for scope in resource.scope_spans for span in scope.spans)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield got, f"http://127.0.0.1:{server.server_port}/v1/traces"
    server.shutdown()
    server.server_close()


@pytest.mark.integration
async def test_a_running_weaver_exports_a_persons_change_from_request_to_ack(
    start_weaver, collector, tmp_path, monkeypatch
):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    got, endpoint = collector
    url = await start_weaver(f"[tracing]\nendpoint = '{endpoint}'")
    credentials = Credentials.find(tmp_path, "run")
    person = await nats.connect(url, user_credentials=str(credentials.operator_creds))
    worker = await nats.connect(url, user_credentials=str(credentials.weaver_creds))
    noticed = await person.subscribe(subjects.out("run", "notice"))
    issued = await person.subscribe(subjects.out("run", "issue"))
    await settle(person)
    hello = Hello(
        run="run", worker="g0-0", incarnation=7, group="g0", rank=0, node="n0",
        knobs=(KnobSpec(name="lr", kind="float", fence="worker"),), values={"lr": 0.1},
    )  # fmt: skip
    await worker.publish(subjects.event("run", "g0-0", 7), codec.encode(hello))
    await noticed.next_msg(DEADLINE_S)
    body = json.dumps({"knob": "lr", "value": 0.25}).encode()
    await person.request("tl.ctl.run.operator.knob.set", body, timeout=DEADLINE_S)
    command = json.loads((await issued.next_msg(DEADLINE_S)).data)["command"]
    ack = Ack(command=command["id"], run="run", worker="g0-0", incarnation=7,
              epoch=command["epoch"], status="applied", step=3)  # fmt: skip
    await worker.publish(subjects.ack("run", "g0-0", 7), codec.encode(ack))
    await eventually(lambda: len(got) >= 4)
    assert {span.name for span in got} >= {"verdict", "command set_knob", "outcome"}
    assert len({span.trace_id for span in got}) == 1
    for client in (person, worker):
        await client.close()
