"""Three real torchft groups, one of which freezes or dies during a collective."""

import json
import os
import signal

import pytest
from torchft.coordination import LighthouseServer

from tests.preloaded import Preloaded
from tests.waiting import eventually
from torchloom_core.wire.messages import Hello, Note
from torchloom_core.wire.operations import Cut

pytestmark = pytest.mark.integration
HERE = os.path.dirname(__file__)
QUIET = {"RUST_LOG": "error", "OMP_NUM_THREADS": "1", "TORCHLOOM_HEARTBEAT_S": "0.2"}
GROUPS = ("g0", "g1", "g2")


class Group:
    """One replica group in a process of its own."""

    def __init__(self, folder, name, lighthouse, environment, arguments):
        self.name = name
        self._journal = folder / f"{name}.jsonl"
        self.errors_path = folder / f"{name}.err"
        command = [os.path.join(HERE, "quorum_trainer.py"), "--journal", self._journal]
        command += ["--lighthouse", lighthouse, "--group", name, *arguments]
        with self.errors_path.open("w") as errors:
            self.process = Preloaded(command, env=os.environ | QUIET | environment, stderr=errors)

    @property
    def steps(self):
        text = self._journal.read_text() if self._journal.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    @property
    def failed(self):
        return [line for line in self.steps if not line["committed"]]

    async def until(self, what):
        """Wait for ``what()`` to be true while the process runs."""

        def found():
            assert self.process.poll() is None, self.errors_path.read_text()
            return what()

        return await eventually(found)

    async def trains_among(self, participants, after=0):
        """Wait for a commit among so many groups, in a line after the first ``after``."""

        def line():
            among = [x for x in self.steps[after:] if x["participants"] == participants]
            return next((line for line in among if line["committed"]), None)

        return await self.until(line)


@pytest.fixture
def lighthouse():
    server = LighthouseServer(
        bind="[::]:0",
        min_replicas=1,
        join_timeout_ms=3_600_000,  # no group is left behind
        quorum_tick_ms=100,
        heartbeat_timeout_ms=1000,
    )
    yield server.address()
    server.shutdown()


@pytest.fixture
def start(tmp_path, join_file, lighthouse, end_with_sidecars):
    groups = []

    def start(name, *arguments, **environment):
        environment = {"TORCHLOOM_JOIN": str(join_file)} | environment
        groups.append(Group(tmp_path, name, lighthouse, environment, arguments))
        return groups[-1]

    yield start
    for group in groups:
        end_with_sidecars(group.process)


async def test_a_group_killed_in_an_allreduce_blocks_no_survivor(weaver, start):
    die = ("--plant", "die", "--among", 4)
    # In a ring of four one group is no neighbour of the dead one: it learns of it from a survivor.
    groups = [start(name, "--width", 1024, *(die if name == "g1" else ())) for name in GROUPS]
    groups.append(start("g3", "--width", 1024))
    survivors = [group for group in groups if group.name != "g1"]
    for group in survivors:
        together = await group.trains_among(4)
        await group.trains_among(3, after=group.steps.index(together))
        assert len(group.failed) <= 1
    assert groups[1].process.wait() == -9


@pytest.mark.long
async def test_an_error_of_one_group_reaches_its_peers_at_once(weaver, start):
    fail = ("--plant", "raise", "--among", 3)
    groups = [start(name, *(fail if name == "g1" else ())) for name in GROUPS]
    for group in groups:
        await group.trains_among(3)
        failed = await group.until(lambda group=group: group.failed)
        await group.trains_among(3, after=group.steps.index(failed[0]))
        assert len(group.failed) == 1
    assert groups[1].failed[0]["errors"] == ["planted"]


@pytest.mark.long
async def test_a_cut_frees_the_survivors_of_a_frozen_group_and_the_group_returns(weaver, start):
    stop = ("--plant", "stop", "--among", 3)
    planted = {"g1": stop}  # outside a collective the others would continue without it
    groups = [start(name, *planted.get(name, ()), TORCHLOOM_HANG_AFTER_S="1") for name in GROUPS]
    hellos = {name: await weaver.admit(f"{name}-0") for name in GROUPS}
    for group in groups:
        await group.trains_among(3)
    frozen = groups[1].process
    survivors = (groups[0], groups[2])
    for group in survivors:
        name = f"{group.name}-0"
        await weaver.beat(lambda batch: value_of(batch, "trainer_waiting_s") > 0.5, name)
    await weaver.beat(lambda batch: value_of(batch, "trainer_stopped") == 1.0, "g1-0")

    phases = ("allreduce", "stopped", "allreduce")
    hangs = [await hang(weaver, name, phase) for name, phase in zip(GROUPS, phases, strict=True)]
    assert len({fields["quorum_id"] for fields in hangs}) == 1
    assert "quorum_trainer.py" in hangs[0]["stacks"]
    assert "collective" not in hangs[1]  # a stopped process cannot answer
    for fields in (hangs[0], hangs[2]):
        assert fields["collective"].startswith("gloo:all_reduce")
        assert fields["enqueued_seq"] == fields["completed_seq"] + 1
    assert hangs[0]["enqueued_seq"] == hangs[2]["enqueued_seq"]

    done = [len(group.steps) for group in survivors]
    quorum = max(
        event.fields["quorum_id"]
        for event in weaver.events
        if isinstance(event, Note) and event.kind == "quorum"
    )
    first, second = (hellos[group.name] for group in survivors)
    later = await weaver.ask(first, Cut(quorum_id=quorum + 1), "later")
    assert (later.status, later.detail) == (
        "rejected",
        f"need the present quorum, {quorum}, was {quorum + 1}",
    )
    cut = await weaver.ask(first, Cut(quorum_id=quorum), "first")
    assert (cut.status, cut.detail) == (
        "applied",
        f"2 connections of quorum {quorum} are shut down",
    )
    # The first has passed its error on: the second may be free already.
    assert (await weaver.ask(second, Cut(quorum_id=quorum), "second")).status == "applied"
    for group, lines in zip(survivors, done, strict=True):
        await group.trains_among(2, after=lines)
        assert len(group.failed) <= 1
    os.kill(frozen.pid, signal.SIGCONT)
    back = [len(group.steps) for group in groups]
    for group, lines in zip(groups, back, strict=True):
        await group.trains_among(3, after=lines)
    hellos_ = [event for event in weaver.events if isinstance(event, Hello) and event.rank == 0]
    assert {hello.incarnation for hello in hellos_} == {h.incarnation for h in hellos.values()}


async def hang(weaver, group, phase):
    """Wait for the note of a hang in this phase, and return its fields."""

    def fields():
        notes = [e for e in weaver.events if isinstance(e, Note) and e.worker == f"{group}-0"]
        hangs = [note.fields for note in notes if note.kind == "hang"]
        return next((fields for fields in hangs if fields.get("phase") == phase), None)

    return await weaver.until(fields)


def value_of(batch, metric):
    """Return the newest value of a metric in a batch of telemetry, -1 where it has none."""
    if metric not in batch.metrics:
        return -1.0
    values = memoryview(batch.values).cast("d")
    return values[len(values) - len(batch.metrics) + batch.metrics.index(metric)]


@pytest.mark.long
@pytest.mark.parametrize("local", [(), ("--sync-every", 1)], ids=["DDP", "LocalSGD"])
async def test_compute_time_is_distinguished_from_waiting_with_equally_long_steps(
    weaver, start, local
):
    for name in GROUPS:
        start(name, *local, "--step-s", 0.2 if name == "g1" else 0.01)

    def all_of_it_is_own(batch):
        return value_of(batch, "compute_s") > value_of(batch, "wait_s") > 0

    def most_is_waiting(batch):
        return value_of(batch, "wait_s") > 2 * value_of(batch, "compute_s") > 0

    await weaver.beat(all_of_it_is_own, "g1-0")
    for name in ("g0-0", "g2-0"):
        waits = await weaver.beat(most_is_waiting, name)
        own_s, wait_s = value_of(waits, "compute_s"), value_of(waits, "wait_s")
        assert own_s + wait_s == pytest.approx(value_of(waits, "step_time_s"))
