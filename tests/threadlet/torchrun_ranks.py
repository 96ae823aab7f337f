"""All ranks of one real torchrun for the tests, which play the Weaver's part for them."""

import asyncio
import json
import os
import subprocess
import sys

from tests.deadlines import DEADLINE_S
from tests.waiting import eventually
from torchloom_core.wire.messages import Hello
from torchloom_core.wire.operations import FencedChange, Pause, Resume


class Job:
    """All ranks of one torchrun, and their incarnations known to the Weaver."""

    def __init__(self, process, folder, ranks, knobs, group="g0"):
        self.process, self._folder, self.ranks = process, folder, range(ranks)
        self.group = group
        self._knobs = set(knobs)
        self.hellos = {}

    def journal(self, rank, event="step"):
        path = self._folder / f"{rank}.jsonl"
        text = path.read_text() if path.exists() else ""
        lines = map(json.loads, text[: text.rfind("\n") + 1].splitlines())
        return [line for line in lines if line["event"] == event]

    async def admit(self, weaver):
        for rank in self.ranks:
            old = self.hellos.get(rank)

            def restarted(rank=rank, old=old):
                return [
                    e
                    for e in weaver.events
                    if isinstance(e, Hello)
                    and e.worker == f"{self.group}-{rank}"
                    and (old is None or e.incarnation > old.incarnation)
                    and self._knobs <= {spec.name for spec in e.knobs}
                ]

            (hello, *_) = await weaver.until(restarted)
            self.hellos[rank] = await weaver.admit(hello.worker, incarnation=hello.incarnation)

    async def goes_on(self, rank=0, steps=3):
        done = len(self.journal(rank))
        await eventually(lambda: len(self.journal(rank)) >= done + steps)

    async def offer(self, weaver, number, do, **fields):
        """Offer a change to all, late to the last rank; return the final acks."""
        operation = FencedChange(number=number, do=do, groups=fields.pop("groups", ()))
        for rank, hello in self.hellos.items():
            if rank == self.ranks[-1]:
                await self.goes_on()
            await weaver.send(hello, operation, f"c{number}-{hello.worker}", **fields)
        return [await weaver.final(f"c{number}-{each.worker}") for each in self.hellos.values()]

    def by_step(self, rank=0):
        """Return the different lines of each step: one, unless it came out otherwise once more."""
        found = {}
        for line in self.journal(rank):
            lines = found.setdefault(line["step"], [])
            if line not in lines:
                lines.append(line)
        return found

    async def pause_and_resume(self, weaver, number):
        """Have all ranks pause at one step, and train on."""
        async with weaver.confirming_pause("v1"):
            acks = await self.offer(weaver, number, Pause(), cause="v1")
            assert {ack.status for ack in acks} == {"applied"}, acks
            for rank in self.ranks:
                await weaver.beat(lambda batch: batch.state == "paused", f"{self.group}-{rank}")
            assert len({len(self.journal(rank)) for rank in self.ranks}) == 1
            for hello in self.hellos.values():
                ack = await weaver.ask(hello, Resume(), f"r-{hello.worker}")
                assert ack.status == "applied"
        await self.goes_on()

    async def end(self):
        status = await asyncio.to_thread(self.process.wait, DEADLINE_S)
        assert "torchloom failed" not in (self._folder / "errors").read_text()
        return status


class Starter:
    """Starts jobs of one script with ``--journal FOLDER``, in which each rank writes RANK.jsonl."""

    def __init__(self, script, folder, join_file, knobs):
        self._script, self._folder, self._join_file = script, folder, join_file
        self._knobs = knobs
        self.started = []

    def __call__(self, *arguments, ranks=2, restarts=3, name="", attached=True, group="g0", **more):
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCHLOOM_HEARTBEAT_S": "0.2"}
        # torchrun's own store keeps gloo's addresses of an ended incarnation.
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        if attached:
            environment["TORCHLOOM_JOIN"] = str(self._join_file)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", ranks, "--max-restarts", restarts, self._script]
        command += ["--journal", folder, *arguments]
        with (folder / "errors").open("w") as errors:
            process = subprocess.Popen(
                list(map(str, command)), env=environment | more, stderr=errors, cwd=folder
            )
        self.started.append(process)
        return Job(process, folder, ranks, self._knobs, group)
