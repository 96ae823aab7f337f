"""Groups of two ranks: FSDP2 within each, torchft across them, and one vote of all."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from torchft.coordination import LighthouseServer

from tests.threadlet.bare_manager import BareManager
from tests.threadlet.standbys import refusal
from tests.waiting import eventually
from torchloom_core.wire.messages import Hello
from torchloom_core.wire.operations import FencedChange, SetKnobs
from torchloom_threadlet.torchft import attach

HERE = Path(__file__).parent
RANKS = ["g0-0", "g0-1", "g1-0", "g1-1"]


@pytest.fixture
def start(tmp_path, join_file, end_with_sidecars):
    lighthouse = LighthouseServer(
        bind="[::]:0",
        min_replicas=1,
        join_timeout_ms=10_000,
        quorum_tick_ms=50,
        heartbeat_timeout_ms=3000,
    )
    common = {"TORCHLOOM_JOIN": str(join_file), "TORCHFT_LIGHTHOUSE": lighthouse.address()}
    common |= {"RUST_LOG": "error", "OMP_NUM_THREADS": "1", "TORCHLOOM_HEARTBEAT_S": "0.2"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--nproc-per-node", "2", HERE / "hsdp_trainer.py", "--journal", tmp_path]
    started = []

    def start(name):
        with (tmp_path / f"{name}.err").open("a") as errors:
            environment = os.environ | common | {"REPLICA_GROUP_ID": name}
            started.append(subprocess.Popen(torchrun, env=environment, stderr=errors))
        return started[-1]

    yield start
    for process in started:
        end_with_sidecars(process)
    lighthouse.shutdown()


def steps(folder, rank):
    """Return the lines of a rank's journal, over all its incarnations."""
    path = folder / f"{rank}.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


async def change(weaver, folder, hellos, number, lr, mode):
    """Offer a change to all, late to one rank per group; return the steps at which it landed."""
    operation = FencedChange(number=number, do=SetKnobs(values={"lr": lr, "compression": mode}))
    for worker, hello in sorted(hellos.items(), key=lambda item: item[0][-1]):
        if worker == "g0-1":
            done = len(steps(folder, "g0-0"))
            await eventually(lambda done=done: len(steps(folder, "g0-0")) > done + 5)
        await weaver.send(hello, operation, f"c{number}-{worker}")
    acks = [await weaver.final(f"c{number}-{worker}") for worker in hellos]
    assert {ack.status for ack in acks} == {"applied"}
    return {ack.step for ack in acks}


@pytest.mark.integration
@pytest.mark.long
async def test_all_ranks_of_all_groups_change_at_one_step_and_returning_ones_inherit_it(
    weaver, start, tmp_path, end_with_sidecars
):
    def all_train_together():
        latest = [steps(tmp_path, rank)[-1:] for rank in RANKS]
        return all(lines and lines[0]["participants"] == 2 for lines in latest)

    doomed = [start(name) for name in ("g0", "g1")][1]
    hellos = {rank: await weaver.admit(rank) for rank in RANKS}
    await eventually(all_train_together)
    landed = [await change(weaver, tmp_path, hellos, 1, 0.002, "bf16")]

    end_with_sidecars(doomed)  # torchrun, and then its ranks
    ended = {rank: len(steps(tmp_path, rank)) for rank in ("g1-0", "g1-1")}
    for rank in ended:
        weaver.enrolment.release(rank)
    start("g1")
    for rank in ended:
        again = await weaver.until(
            lambda rank=rank: [
                e
                for e in weaver.events
                if isinstance(e, Hello)
                and e.worker == rank
                and e.incarnation > hellos[rank].incarnation
            ]
        )
        hellos[rank] = await weaver.admit(rank, incarnation=again[0].incarnation)
    await eventually(lambda: all(len(steps(tmp_path, rank)) > n + 5 for rank, n in ended.items()))
    await eventually(all_train_together)
    for rank, lines in ended.items():
        first = next(line for line in steps(tmp_path, rank)[lines:] if line["committed"])
        assert (first["lr"], first["mode"]) == (0.002, "bf16")
    landed.append(await change(weaver, tmp_path, hellos, 2, 0.004, "int8"))
    done = len(steps(tmp_path, "g0-0"))
    await eventually(lambda: len(steps(tmp_path, "g0-0")) > done + 3)

    assert [len(at) for at in landed] == [1, 1]
    rates, modes, weights = defaultdict(set), defaultdict(set), defaultdict(set)
    outcomes = defaultdict(list)
    for rank in RANKS:
        for line in steps(tmp_path, rank):
            outcomes[rank].append(line["committed"])
            if line["committed"]:
                rates[line["step"]].add(line["lr"])
                modes[line["step"]].add(line["mode"])
                weights[line["step"], rank[-1]].add(tuple(line["weights"]))
    assert {len(seen) for seen in (*rates.values(), *modes.values())} == {1}
    assert {len(seen) for seen in weights.values()} == {1}
    for (step,), lr, mode in zip(landed, (0.002, 0.004), ("bf16", "int8"), strict=True):
        assert rates[step + 1] == {lr} != rates[step]
        assert modes[step + 1] == {mode} != modes[step]
    both = zip(outcomes["g0-0"], outcomes["g0-1"], strict=False)
    assert all(one == other for one, other in both)
    assert outcomes["g0-0"].count(False) <= 1


@pytest.mark.parametrize(
    ("own", "line"),
    [
        ({}, "need a default process group of this group's 2 ranks, was none"),
        ({"_use_async_quorum": True}, "need use_async_quorum=False in a group of 2 ranks"),
    ],
)
def test_a_group_whose_ranks_cannot_agree_logs_a_warning_and_refuses_fenced_changes(
    caplog, own, line
):
    manager = BareManager()
    manager._group_world_size = 2
    for name, value in own.items():
        setattr(manager, name, value)
    loom = attach()
    loom.manage(manager)
    loom.knob("depth", lambda: 1, lambda value: None, kind="int", fence="run")
    assert [r.getMessage() for r in caplog.records if "fenced changes" in r.getMessage()] == [
        f"fenced changes are not possible: {line}"
    ]
    refused = FencedChange(number=1, do=SetKnobs(values={"depth": 2}))
    assert refusal(loom._worker, refused, "training") == (
        "this worker cannot agree with other ranks: no framework adapter is attached"
    )
    assert "fenced_change" not in loom._worker.operations.offered()
