"""Three real torchft groups, one of which holds the others up."""

import json
import os
import subprocess
import sys

import pytest
from torchft.coordination import LighthouseServer

from tests.waiting import eventually

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
        command = [sys.executable, os.path.join(HERE, "quorum_trainer.py")]
        command += ["--journal", self._journal, "--lighthouse", lighthouse, "--group", name]
        with self.errors_path.open("w") as errors:
            self.process = subprocess.Popen(
                [*map(str, command), *map(str, arguments)],
                env=os.environ | QUIET | environment,
                stderr=errors,
            )

    @property
    def steps(self):
        text = self._journal.read_text() if self._journal.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    @property
    def failed(self):
        return [line for line in self.steps if not line["committed"]]

    async def until(self, what):
        """Wait for ``what()`` to be true, and for the process no longer than it lives."""

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
        join_timeout_ms=3_600_000,  # nobody is left behind
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


def value_of(batch, metric):
    """Return the newest value of a metric in a batch of telemetry, -1 where it has none."""
    if metric not in batch.metrics:
        return -1.0
    values = memoryview(batch.values).cast("d")
    return values[len(values) - len(batch.metrics) + batch.metrics.index(metric)]


@pytest.mark.parametrize("local", [(), ("--sync-every", 1)], ids=["DDP", "LocalSGD"])
async def test_own_time_is_told_from_waiting_though_all_steps_take_equally_long(
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
