"""Permissions to steer a lighthouse, and to publish its view."""

import pytest

from tests.kernel.runs import lighthouse_view
from tests.settled import settle
from tests.waiting import eventually
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import decode_json, encode
from torchloom_core.wire.steering import Leave, LighthouseView, Steer

pytestmark = pytest.mark.integration

STEER = Steer(run="run", epoch=1, number=1, do=Leave(replicas=("b:uuid",)), reason="it has ended")


@pytest.fixture
async def lighthouse(broker, connect):
    creds = broker.credentials.lighthouse_creds.read_text()
    return await connect("lighthouse", creds, subjects.lighthouse_inbox("run"))


async def received_by(member, subject):
    received = []

    async def receive(message):
        received.append(message)

    await member.client.subscribe(subject, cb=receive)
    await settle(member.client)
    return received


async def test_steering_by_the_weaver_reaches_the_lighthouse(bus, lighthouse):
    received = await received_by(lighthouse, subjects.steer("run"))
    bus.steer(STEER)
    await eventually(lambda: received)
    assert decode_json(Steer, received[0].data, "steering") == STEER


async def test_a_view_of_the_lighthouse_reaches_the_weaver(bus, arrivals, lighthouse):
    view = lighthouse_view(silent=("b:uuid",))
    await lighthouse.client.publish(subjects.lighthouse("run"), encode(view))
    await arrivals.until(lambda got: got.messages)
    assert arrivals.messages == [view]


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b'{"type": "hello"}', encode(lighthouse_view(run="other"))],
    ids=["nothing", "no JSON", "another message", "of another run"],
)
async def test_an_invalid_view_is_dropped_and_logged(bus, arrivals, lighthouse, data):
    await lighthouse.client.publish(subjects.lighthouse("run"), data)
    await arrivals.until(lambda got: got.malformed)
    assert arrivals.malformed[0][0] == subjects.lighthouse("run")
    assert arrivals.messages == []


async def test_a_flood_of_views_is_cut(bus, arrivals, lighthouse):
    data = encode(lighthouse_view())
    for _ in range(5000):
        await lighthouse.client.publish(subjects.lighthouse("run"), data)
    await arrivals.until(lambda got: len(got.messages) + len(got.malformed) == 5000)
    assert len(arrivals.messages) < 2500


async def test_a_lighthouse_may_say_and_hear_nothing_else(bus, lighthouse):
    client = lighthouse.client
    for subject in (
        subjects.steer("run"),
        subjects.telemetry("run", "g0-0", 1),
        subjects.event("run", "g0-0", 1),
        subjects.control("run", "operator", "status"),
        subjects.lighthouse("another"),
        subjects.join("run"),
        "$KV.TL_run.epoch",
    ):
        assert await lighthouse.is_denied(client.publish(subject, b"{}")), subject
    for subject in (
        subjects.telemetry("run"),
        subjects.out("run"),
        subjects.pause_state("run"),
        ">",
    ):
        assert await lighthouse.is_denied(client.subscribe(subject)), subject


async def test_a_worker_may_neither_steer_nor_publish_a_view(bus, connect_worker):
    worker = await connect_worker("g0-0")
    for subject in (subjects.steer("run"), subjects.lighthouse("run")):
        assert await worker.is_denied(worker.client.publish(subject, b"{}"))
        assert await worker.is_denied(worker.client.subscribe(subject))


async def test_a_person_receives_both_and_may_publish_neither(bus, connect_person, lighthouse):
    person = await connect_person("alice")
    steers = await received_by(person, subjects.steer("run"))
    views = await received_by(person, subjects.lighthouse("run"))
    bus.steer(STEER)
    await lighthouse.client.publish(subjects.lighthouse("run"), encode(lighthouse_view()))
    await eventually(lambda: steers and views)
    assert decode_json(LighthouseView, views[0].data, "view") == lighthouse_view()
    for subject in (subjects.steer("run"), subjects.lighthouse("run")):
        assert await person.is_denied(person.client.publish(subject, encode(STEER)))
