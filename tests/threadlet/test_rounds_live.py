"""LocalSGD's and DiLoCo's rounds are changed in a real quorum while groups die and return."""

import asyncio
import json
import os
from pathlib import Path

import pytest

os.environ.setdefault("RUST_LOG", "error")  # the lighthouse's own lines, of this process

from torchft.coordination import LighthouseServer

from tests.preloaded import Preloaded
from tests.waiting import eventually
from torchloom_core.wire.messages import Hello
from torchloom_core.wire.operations import FencedChange, SetKnobs

pytestmark = [pytest.mark.integration, pytest.mark.long]
HERE = Path(__file__).parent
LONG, SHORT = {"sync_every": 24}, {"sync_every": 2}
DELAYED = {"sync_every": 24, "fragment_sync_delay": 9}
AT_ONCE = {"sync_every": 2, "fragment_sync_delay": 0}


class Group:
    """One replica group; a restarted one continues the same journal."""

    def __init__(self, folder, name, arguments, environment, end):
        self.name, self._folder, self._end = name, folder, end
        self._command = [HERE / "rounds_trainer.py", "--group", name, *arguments]
        self._command += ["--journal", folder / f"{name}.jsonl"]
        self._environment = os.environ | environment
        self.start()

    def start(self):
        with (self._folder / f"{self.name}.err").open("a") as errors:
            self.process = Preloaded(self._command, env=self._environment, stderr=errors)

    def kill(self):
        self._end(self.process)

    @property
    def errors(self):
        return (self._folder / f"{self.name}.err").read_text()

    @property
    def syncs(self):
        path = self._folder / f"{self.name}.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


@pytest.fixture
def start(tmp_path, join_file, end_with_sidecars):
    lighthouse = LighthouseServer(
        bind="[::]:0",
        min_replicas=1,
        join_timeout_ms=10_000,
        quorum_tick_ms=50,
        heartbeat_timeout_ms=3000,
    )
    groups = []

    def start(name, *arguments):
        environment = {"TORCHLOOM_JOIN": str(join_file), "RUST_LOG": "error"}
        environment |= {"OMP_NUM_THREADS": "1", "TORCHLOOM_HEARTBEAT_S": "0.2"}
        arguments = (*arguments, "--lighthouse", lighthouse.address())
        groups.append(Group(tmp_path, name, arguments, environment, end_with_sidecars))
        return groups[-1]

    yield start
    for group in groups:
        group.kill()
    lighthouse.shutdown()


async def admit(weaver, group, hellos):
    """Admit the group's next incarnation, and wait for its first sync."""
    worker, synced = f"{group.name}-0", len(group.syncs)
    earlier = hellos.get(worker)
    found = await weaver.until(
        lambda: [
            e
            for e in weaver.events
            if isinstance(e, Hello)
            and e.worker == worker
            and (earlier is None or e.incarnation > earlier.incarnation)
        ]
    )
    hellos[worker] = await weaver.admit(worker, incarnation=found[0].incarnation)
    await eventually(lambda: len(group.syncs) > synced)


@pytest.mark.parametrize(
    ("arguments", "changes"),
    [
        ((), [LONG, SHORT, LONG, SHORT]),
        (("--fragments", "2", "--delay", "1"), [DELAYED, AT_ONCE, DELAYED, AT_ONCE]),
    ],
    ids=["LocalSGD", "Streaming DiLoCo"],
)
async def test_rounds_change_under_kills_and_only_killed_groups_lose_one(
    weaver, start, arguments, changes
):
    groups = [start(name, *arguments) for name in ("g0", "g1", "g2")]
    hellos, landed, kills = {}, [], 0
    await asyncio.gather(*(admit(weaver, group, hellos) for group in groups))
    for number, values in enumerate(changes, 1):
        operation = FencedChange(number=number, do=SetKnobs(values=values))
        for worker, hello in hellos.items():
            await weaver.send(hello, operation, f"c{number}-{worker}")
        if number % 2:  # dies during the agreement, and is back before the next
            groups[2].kill()
            kills += 1
        acks = [await weaver.final(f"c{number}-{name}-0") for name in ("g0", "g1")]
        assert {ack.status for ack in acks} == {"applied"}
        landed.append({ack.step for ack in acks})
        if number % 2:
            weaver.enrolment.release("g2-0")
            groups[2].start()
            await admit(weaver, groups[2], hellos)
    done = len(groups[0].syncs)
    await eventually(lambda: all(len(group.syncs) > done + 3 for group in groups[:2]))
    assert [len(steps) for steps in landed] == [1] * len(changes)
    for group in groups:
        assert group.process.poll() is None, group.errors
        assert "AssertionError" not in group.errors
    for group in groups[:2]:
        syncs = group.syncs
        failed = sum(not sync["committed"] for sync in syncs)
        assert failed <= kills
        steps = [sync["step"] for sync in syncs if sync["committed"]]
        assert steps == sorted(set(steps))
        # A step that this group failed and another made is in the state loaded from that one.
        assert steps[-1] - steps[0] + 1 - len(steps) <= failed
    parts = max(
        1, int(dict(zip(arguments[::2], arguments[1::2], strict=True)).get("--fragments", 0))
    )
    own = {}
    for group in groups:
        for sync in group.syncs:
            if sync["committed"]:
                seen = own.setdefault(sync["step"], {"round": set(), "weights": set()})
                seen["weights"].add(sync["weights"])
                if not sync["first"]:  # its first round began before it joined the others
                    seen["round"].add(tuple(sync["round"]))
    assert {len(seen["weights"]) for seen in own.values()} == {1}
    assert {len(seen["round"]) for step, seen in own.items() if step > 1} == {1}
    expected = [(v["sync_every"] // parts, v.get("fragment_sync_delay", 0)) for v in changes]
    for (step,), after in zip(landed, expected, strict=True):
        assert own[step + 1]["round"] == {after}
