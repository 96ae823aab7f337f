"""Pipelines with a Weaver: knobs, pause, checkpoint and drain while workers are killed."""

import asyncio

import pytest

from tests.deadlines import DEADLINE_S
from tests.pipeline.fleet import Fleet, assert_same, undisturbed
from tests.waiting import eventually
from torchloom_core.wire.messages import Hello
from torchloom_core.wire.operations import (
    Checkpoint,
    Drain,
    FencedChange,
    Pause,
    Resume,
    SetKnobs,
    Store,
    Suspend,
)

pytestmark = pytest.mark.integration
FOREVER = 100_000
WORKERS = ("w0", "w1", "w2", "w3")


class Run:
    """A fleet whose workers the Weaver's part has admitted."""

    def __init__(self, fleet, weaver, join_file):
        self.fleet, self.weaver = fleet, weaver
        self._join, self.hellos = str(join_file), {}

    async def start(self, steps, *workers, **more):
        more = {"scheduler": None, "step_s": 0.02, "join": self._join} | more
        self.fleet.start(steps, *workers, **more)
        for worker in workers:
            old = self.hellos.pop(worker, None)

            def ready(worker=worker, old=old):
                return [
                    event
                    for event in self.weaver.events
                    if isinstance(event, Hello)
                    and event.worker == worker
                    and "fenced_change" in event.actuators
                    and (old is None or event.incarnation > old.incarnation)
                ]

            (hello, *_) = await self.weaver.until(ready)
            await self.weaver.admit(worker, incarnation=hello.incarnation)
            self.hellos[worker] = hello

    async def reaches(self, worker, step):
        await eventually(lambda: max(self.fleet.losses(worker), default=0) >= step)

    async def goes_on(self, worker, steps=3):
        await self.reaches(worker, max(self.fleet.losses(worker), default=0) + steps)

    async def send(self, number, do, *workers, **fields):
        change = FencedChange(number=number, do=do)
        for worker in workers:
            await self.weaver.send(self.hellos[worker], change, f"c{number}-{worker}", **fields)

    async def ends(self, number, *workers):
        acks = [await self.weaver.final(f"c{number}-{worker}") for worker in workers]
        assert {ack.status for ack in acks} == {"applied"}, acks
        return acks


@pytest.fixture
def run(fleet, weaver, join_file):
    return lambda workers, standbys=0: Run(fleet(workers, standbys), weaver, join_file)


async def test_all_workers_of_a_pipeline_take_a_knob_at_one_step(run):
    four = run(4)
    await four.start(FOREVER, *WORKERS)
    await four.goes_on("w0")
    await four.send(1, SetKnobs(values={"lr": 0.004, "clip_norm": 0.5}), *WORKERS[:3])
    await four.goes_on("w0")
    assert set(four.fleet.rates("w0").values()) == {0.01}
    await four.send(1, SetKnobs(values={"lr": 0.004, "clip_norm": 0.5}), "w3")
    acks = await four.ends(1, *WORKERS)
    (step,) = {ack.step for ack in acks}
    await four.goes_on("w0")
    for worker in WORKERS:
        found = four.fleet.rates(worker)
        assert {at for at, rate in found.items() if rate == 0.01} == set(range(1, step + 1))
    batch = await four.weaver.beat(lambda batch: batch.step > step, "w3")
    assert {"loss", "grad_norm", "compute_share"} <= set(batch.metrics)


@pytest.mark.long
async def test_a_standby_takes_the_part_of_a_worker_that_is_killed_in_a_pause(run):
    five, steps = run(5, standbys=1), 60
    await five.start(steps, *WORKERS, "w4")
    await five.goes_on("w0")
    async with five.weaver.confirming_pause("v1"):
        await five.send(1, Pause(), *WORKERS, cause="v1")
        (step,) = {ack.step for ack in await five.ends(1, *WORKERS)}
        five.fleet.processes["w2"].kill()
        paused = ("w0", "w1", "w3", "w4")
        await five.weaver.beat(lambda batch: batch.state == "paused", "w4")
        await asyncio.sleep(0.3)  # a step that somebody makes all the same would be seen
        found = [max(five.fleet.losses(name)) for name in paused]
        assert found == [step + 1] * 4
        for name in paused:
            await five.weaver.ask(five.hellos[name], Resume(), f"r-{name}")
    found = await asyncio.to_thread(five.fleet.weights, *paused)
    assert_same(found, undisturbed(steps, scheduler=None)[1])


@pytest.mark.long
async def test_three_workers_go_on_from_a_checkpoint_of_four_as_if_nothing_was(run, tmp_path):
    four, steps, changes = run(4), 40, {"lr": 0.004, "clip_norm": 0.5}
    more = {"options": {"checkpoints": str(tmp_path / "saved")}, "scheduler": None}
    await four.start(steps, *WORKERS, **more)
    await four.goes_on("w0")
    await four.send(1, SetKnobs(values=changes), *WORKERS)
    (changed,) = {ack.step for ack in await four.ends(1, *WORKERS)}
    await four.send(2, Checkpoint(), *WORKERS)
    (saved,) = {ack.step for ack in await four.ends(2, *WORKERS)}
    await eventually(lambda: [*tmp_path.glob("saved/*/manifest.json")])
    for worker in WORKERS:
        four.fleet.processes[worker].kill()
    three = Fleet(tmp_path, 3)
    try:
        three.start(steps, "x0", "x1", "x2", **more)
        found = await asyncio.to_thread(three.weights, "x0", "x1", "x2")
    finally:
        three.close()
    assert min(three.losses("x0")) == saved + 2
    assert_same(found, undisturbed(steps, scheduler=None, knobs={changed: changes})[1])


@pytest.mark.long
async def test_a_drained_worker_leaves_with_the_commit_of_a_step(run, capfd):
    four, steps = run(4), 60
    await four.start(steps, *WORKERS)
    await four.goes_on("w0")
    ack = await four.weaver.ask(four.hellos["w2"], Drain())
    assert ack.status == "applied"
    found = await asyncio.to_thread(four.fleet.weights, "w0", "w1", "w3")
    four.fleet.processes["w2"].join(DEADLINE_S)
    assert four.fleet.processes["w2"].exitcode == 0
    assert_same(found, undisturbed(steps, scheduler=None)[1])
    log = capfd.readouterr().err
    assert "generation 2: without w2" in log
    assert "stops" not in log.split("generation 2")[0]


@pytest.mark.long
async def test_a_suspended_pipeline_is_stored_by_all_and_all_leave(run, tmp_path):
    four, steps = run(4), 40
    more = {"options": {"checkpoints": str(tmp_path / "saved")}, "scheduler": None}
    await four.start(steps, *WORKERS, **more)
    await four.goes_on("w0")
    await four.send(1, Suspend(depth="frozen"), "w0", cause="v0")
    refused = await four.weaver.final("c1-w0")
    assert "the rendezvous would take it for lost" in refused.detail
    await four.send(2, Suspend(depth="stored"), *WORKERS, cause="v1")
    (step,) = {ack.step for ack in await four.ends(2, *WORKERS)}
    for number, operation in ((3, Store()), (4, Drain())):
        for name in WORKERS:
            await four.weaver.send(four.hellos[name], operation, f"c{number}-{name}", cause="v1")
        await four.ends(number, *WORKERS)
    for name in WORKERS:
        four.fleet.processes[name].join(DEADLINE_S)
        assert four.fleet.processes[name].exitcode == 0
    assert max(four.fleet.losses("w0")) <= step + 1
    again = Fleet(tmp_path, 3)
    try:
        again.start(steps, "x0", "x1", "x2", **more)
        found = await asyncio.to_thread(again.weights, "x0", "x1", "x2")
    finally:
        again.close()
    assert min(again.losses("x0")) == step + 2
    assert_same(found, undisturbed(steps, scheduler=None)[1])


@pytest.mark.long
async def test_a_knob_lands_at_one_step_of_all_that_live_whenever_one_is_killed(run):
    five, names = run(5, standbys=1), [*WORKERS, "w4"]
    await five.start(FOREVER, *names)
    await five.goes_on("w0", steps=20)
    values = [0.01, *(0.01 + number / 1000 for number in range(1, 6))]
    for number, value in enumerate(values[1:], 1):
        members = [name for name in names if five.fleet.rates(name)]
        victim = members[number % len(members)]
        await five.send(number, SetKnobs(values={"lr": value}), *names)
        await asyncio.sleep(0.005 * number)
        five.fleet.processes[victim].kill()
        five.weaver.enrolment.release(victim)
        names.remove(victim)
        survivors = [name for name in members if name != victim]
        await five.ends(number, *survivors)
        for name in survivors:
            await five.goes_on(name)
        names.append(f"x{number}")
        await five.start(FOREVER, names[-1])
    rates = {}
    for path in five.fleet.folder.glob("*.losses"):
        for step, rate in five.fleet.rates(path.stem).items():
            rates.setdefault(step, set()).add(rate)
    assert {step: found for step, found in rates.items() if len(found) > 1} == {}
    assert sorted(set.union(*rates.values())) == values
