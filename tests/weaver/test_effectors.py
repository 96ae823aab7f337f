"""A webhook that is down delays nothing of the run, and gets its events once it is back."""

import json
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import msgspec
import nats
import pytest

from tests.deadlines import DEADLINE_S
from tests.settled import settle
from tests.waiting import eventually
from torchloom_core.interface.effector import ActiveEffector
from torchloom_core.live.trajectory.layout import run_folder
from torchloom_core.live.trajectory.reader import read_epochs
from torchloom_core.live.transport.security.credentials import Credentials
from torchloom_core.live.weaver import effectors as effectors_module
from torchloom_core.plugin import Outcome, Subscription
from torchloom_core.wire import codec, subjects
from torchloom_core.wire.events import DeliveryStatus
from torchloom_core.wire.messages import Hello, KnobSpec

pytestmark = pytest.mark.integration


class Webhook:
    subscriptions = (Subscription(Outcome, ("cordon", "uncordon")),)

    def __init__(self, port):
        self._url = f"http://127.0.0.1:{port}"

    async def send(self, delivery):
        self._post(msgspec.json.encode(delivery))
        return "posted"

    def _post(self, body):
        urllib.request.urlopen(self._url, body, timeout=5).close()


class Receiver:
    """An HTTP server that can go away and come back on its port."""

    def __init__(self):
        self.got = []
        self._server = None
        self.port = 0

    def start(self):
        got = self.got

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *arguments):
                pass

        self._server = HTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver():
    receiver = Receiver()
    receiver.start()
    yield receiver
    receiver.stop()


def recorded_results(folder):
    (epoch,) = read_epochs(run_folder(folder, "run"))
    return [
        (message.delivery, message.result)
        for _, _, message, _ in epoch.inputs()
        if isinstance(message, DeliveryStatus)
    ]


async def test_a_webhook_that_is_down_gets_its_events_once_it_is_back(
    receiver, start_weaver, tmp_path, monkeypatch
):
    monkeypatch.setattr(effectors_module, "_LONGEST_PAUSE_S", 1.0)
    effectors = (ActiveEffector("webhook", Webhook(receiver.port), "act"),)
    url = await start_weaver(effectors=effectors)
    credentials = Credentials.find(tmp_path, "run")
    person = await nats.connect(url, user_credentials=str(credentials.operator_creds))
    worker = await nats.connect(url, user_credentials=str(credentials.weaver_creds))
    issued = await person.subscribe(subjects.out("run", "issue"))
    noticed = await person.subscribe(subjects.out("run", "notice"))
    await settle(person)
    knob = KnobSpec(name="lr", kind="float", fence="worker")
    hello = Hello(
        run="run", worker="g0-0", incarnation=7, group="g0", rank=0, node="n0",
        knobs=(knob,), values={"lr": 0.1},
    )  # fmt: skip
    await worker.publish(subjects.event("run", "g0-0", 7), codec.encode(hello))
    await noticed.next_msg(DEADLINE_S)

    async def request(verb, **body):
        subject = f"tl.ctl.run.operator.{verb}"
        answer = await person.request(subject, json.dumps(body).encode(), timeout=DEADLINE_S)
        assert json.loads(answer.data)["ok"], answer.data

    receiver.stop()
    for kind in ("cordon", "uncordon"):
        await request("propose", action={"kind": kind, "node": "n0"}, sure=True)
    text = json.loads((await noticed.next_msg(DEADLINE_S)).data)["text"]
    assert " retrying: URLError: " in text
    await request("knob.set", knob="lr", value=0.2, worker="g0-0")
    command = json.loads((await issued.next_msg(DEADLINE_S)).data)["command"]
    assert command["do"]["value"] == 0.2
    assert receiver.got == []

    receiver.start()
    await eventually(lambda: len(receiver.got) == 2)
    assert [one["event"]["action"]["kind"] for one in receiver.got] == ["cordon", "uncordon"]
    assert json.loads((await noticed.next_msg(DEADLINE_S)).data)["text"].endswith("works again")
    for client in (person, worker):
        await client.close()
    first, second = (one["id"] for one in receiver.got)
    expected = [(first, "retrying"), (first, "delivered"), (second, "delivered")]
    await eventually(lambda: recorded_results(tmp_path) == expected)
