"""Prometheus can scrape a Weaver, and learns what the run does."""

import asyncio
import json
import shutil
import socket
import subprocess
import urllib.request
from itertools import count

import nats
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.deadlines import DEADLINE_S
from tests.settled import settle
from tests.waiting import eventually
from torchloom_core.live.transport.ports import lasting_port
from torchloom_core.live.transport.security.credentials import Credentials
from torchloom_core.live.weaver.metrics.failed_steps import FailedSteps
from torchloom_core.live.weaver.watchers import Watchers
from torchloom_core.wire import codec, subjects
from torchloom_core.wire.events import Tick
from torchloom_core.wire.messages import Hello, KnobSpec, Telemetry


@pytest.fixture
def scrape():
    """Return a function that returns all samples, by name with labels, and checks the text."""

    def read(port):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S) as got:
            text = got.read().decode()
        if promtool := shutil.which("promtool"):
            command = [promtool, "check", "metrics"]
            checked = subprocess.run(command, input=text, capture_output=True, text=True)
            assert (checked.returncode, checked.stderr) == (0, "")
        return {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    return read


@pytest.mark.integration
async def test_a_scrape_shows_workers_steps_commands_verdicts_and_the_broker(
    start_weaver, scrape, tmp_path
):
    port = lasting_port("127.0.0.1")
    url = await start_weaver(f"[metrics]\naddress = '127.0.0.1:{port}'\nseries = 'worker'")
    credentials = Credentials.find(tmp_path, "run")
    person = await nats.connect(url, user_credentials=str(credentials.operator_creds))
    worker = await nats.connect(url, user_credentials=str(credentials.weaver_creds))
    issued = await person.subscribe(subjects.out("run", "issue"))
    noticed = await person.subscribe(subjects.out("run", "notice"))
    await settle(person)
    hello = Hello(
        run="run", worker="g0-0", incarnation=7, group="g0", rank=0, node="n0",
        knobs=(KnobSpec(name="lr", kind="float", fence="worker"),), values={"lr": 0.1},
    )  # fmt: skip
    await worker.publish(subjects.event("run", "g0-0", 7), codec.encode(hello))
    await noticed.next_msg(DEADLINE_S)

    async def request(verb, **body):
        subject = f"tl.ctl.run.operator.{verb}"
        answer = await person.request(subject, json.dumps(body).encode(), timeout=DEADLINE_S)
        assert json.loads(answer.data)["ok"], answer.data

    async def report(step, failed):
        batch = Telemetry(
            run="run", worker="g0-0", incarnation=7, seq=step, state="training", step=step,
            progress_age_s=0.0, metrics=("failed_steps_total",),
            ts_ns=np.array([step], "<i8").tobytes(), values=np.array([failed], "<f8").tobytes(),
        )  # fmt: skip
        await worker.publish(subjects.telemetry("run", "g0-0", 7), codec.encode_telemetry(batch))

    async def samples():
        step = next(steps)
        await report(step, step)
        return await asyncio.to_thread(scrape, port)

    steps = count(40)
    await request("knob.set", knob="lr", value=0.25)
    await issued.next_msg(DEADLINE_S)
    await request("propose", action={"kind": "alert", "worker": "g0-0", "text": "hot"})

    async def failed_steps_are_counted():
        found = await samples()
        return found if found["torchloom_run_failed_steps_total",] >= 1 else None

    found = await eventually(failed_steps_are_counted)
    for key, value in {
        ("torchloom_workers", "trainer", "training"): 1,
        ("torchloom_groups", "trainer", "training"): 1,
        ("torchloom_group_workers", "g0"): 1,
        ("torchloom_commands_total", "issued", "set_knob"): 1,
        ("torchloom_commands_in_flight", "issued"): 1,
        ("torchloom_knob_desired", "lr", "trainer"): 0.25,
        ("torchloom_alerts_total", "person"): 1,
        ("torchloom_weaver_leader",): 1,
        ("torchloom_broker_up",): 1,
        ("torchloom_weaver_actions_stopped",): 0,
        ("torchloom_weaver_broker_full",): 0,
    }.items():
        assert found[key] == value, key
    assert found["torchloom_worker_step", "g0", "g0-0", "n0"] >= 40
    assert found["torchloom_verdicts_total", "alert", "person", "person", "true"] == 1, found
    assert found["torchloom_broker_connections",] >= 3
    assert found["torchloom_broker_jetstream_storage_bytes",] > 0
    assert found["torchloom_weaver_ticks_total",] >= 1
    assert found["process_resident_memory_bytes",] > 1e7
    for client in (person, worker):
        await client.close()


@pytest.mark.integration
async def test_a_port_in_use_delays_the_metrics_and_not_the_weaver(start_weaver, caplog):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        await start_weaver(f"[metrics]\naddress = '{where}'")
        await eventually(lambda: f"not served at {where}" in caplog.text)


def test_failed_steps_are_the_largest_increase_of_a_rank():
    failed = FailedSteps()
    for newest in ([2.0, np.nan], [3.0, 3.0], [5.0, 4.0], [np.nan, 0.0], [5.0, 1.0, 9.0]):
        failed.update(np.array(newest))
    assert failed.total == 0 + 1 + 2 + 0 + 1


def test_a_watcher_that_fails_is_dropped_and_the_others_go_on(caplog):
    class Broken:
        def took(self, message, outputs, ts_ns):
            raise ValueError("broken")

    class Counting:
        ticks = 0

        def took(self, message, outputs, ts_ns):
            self.ticks += 1

    watchers, counting = Watchers(), Counting()
    for watcher in (Broken(), counting):
        watchers.add(watcher)
    for _ in range(2):
        watchers.took(Tick(), (), 0)
    assert counting.ticks == 2
    assert caplog.text.count("Broken failed and gets no more events") == 1
