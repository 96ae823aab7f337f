"""One side of the ingest benchmark: a bare subscriber, or the Weaver's own way from bus to view.

``python ingest_subscriber.py {bare,weaver} URL CREDS STATE_DIR WORKERS ROUNDS`` prints one line
of JSON when it is ready, and one when every sample of the last round has been seen.
"""

import asyncio
import gc
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import nats
import numpy as np
from fleet import ROUND, RUN, config, plugins
from nats.aio.msg import Msg
from scene import report

from torchloom_core.floor.clock import SystemClock
from torchloom_core.live.kernel.plugins.host import ActivePolicy
from torchloom_core.live.trajectory.layout import run_folder
from torchloom_core.live.trajectory.writer import TrajectoryWriter
from torchloom_core.live.transport import NatsBus
from torchloom_core.live.weaver import Weaver
from torchloom_core.plugin import FleetView, Need
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import decode_telemetry
from torchloom_core.wire.decisions import Notice, Proposal
from torchloom_core.wire.events import Recovered, Tick
from torchloom_core.wire.messages import Telemetry

PROGRESS = "bench"
PROGRESS_EVERY = 500
_PENDING_MESSAGES = 1 << 20
_PENDING_BYTES = 1 << 29


class Stopwatch:
    """Counts messages, and the time between the first and the end."""

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self.messages = 0
        self.over = asyncio.Event()

    def count(self) -> bool:
        """Count one message; return whether it was the last."""
        if not self.messages:
            self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()
            self._loop_s = time.thread_time()
        self.messages += 1
        return self.messages == self._expected

    def stop(self) -> None:
        """Take the time and print it."""
        wall_s, cpu_s = time.perf_counter() - self._wall_s, time.process_time() - self._cpu_s
        loop_s = time.thread_time() - self._loop_s
        report(messages=self.messages, wall_s=wall_s, cpu_s=cpu_s, loop_s=loop_s)
        self.over.set()


async def bare(url: str, creds: Path, expected: int) -> None:
    """Decode every batch in a callback, and do nothing else."""
    watch = Stopwatch(expected)
    client = await nats.connect(url, user_credentials=str(creds))
    progress = subjects.out(RUN, PROGRESS)

    async def take(msg: Msg) -> None:
        last = watch.count()
        decode_telemetry(msg.data)
        if watch.messages % PROGRESS_EVERY == 0:
            await client.publish(progress, str(watch.messages).encode())
        if last:
            watch.stop()

    await client.subscribe(
        subjects.telemetry(RUN),
        cb=take,
        pending_msgs_limit=_PENDING_MESSAGES,
        pending_bytes_limit=_PENDING_BYTES,
    )
    await client.flush()
    report(ready=True)
    await watch.over.wait()
    await client.close()


class Witness:
    """A policy that sees when the last round has reached the view."""

    name = "witness"
    Options = msgspec.Struct
    needs = (Need(ROUND),)

    def __init__(self, workers: int, last_round: int) -> None:
        self._workers = workers
        self._last_round = last_round
        self.saw_all = False

    def on_tick(self, view: FleetView) -> Iterable[Proposal]:
        """Look at the round of every worker's newest sample."""
        newest = view.latest(ROUND) == self._last_round
        self.saw_all = int(np.count_nonzero(newest)) == self._workers
        return ()


class WatchedWeaver(Weaver):
    """A Weaver that reports its progress, and ticks once more after the last batch.

    The ticks of its loop go on beside that, once a second; waiting for the next of them would
    measure the clock and not the Weaver.
    """

    watch: Stopwatch
    witness: Witness
    bus: NatsBus

    def receive(self, message: Any, ts_ns: int, data: bytes = b"") -> bool:
        """Do what a Weaver does, and count."""
        if not isinstance(message, Telemetry):
            return super().receive(message, ts_ns)
        last = self.watch.count()
        taken = super().receive(message, ts_ns, data)
        if self.watch.messages % PROGRESS_EVERY == 0:
            self.bus.publish(PROGRESS, Notice(kind=PROGRESS, text=str(self.watch.messages)))
        if last:
            self.enter(Tick())
            if not self.witness.saw_all:
                sys.exit("the last tick did not show every sample of the last round")
            self.watch.stop()
        return taken


async def weaver(url: str, creds: Path, state_dir: Path, workers: int, rounds: int) -> None:
    """Run a Weaver on it, with its policies, its trajectory and a tick a second."""
    settings = config()
    active = plugins(settings)
    witness = Witness(workers, rounds - 1)
    active = replace(active, policies=(*active.policies, ActivePolicy("witness", witness)))
    clock = SystemClock()
    bus = await NatsBus.connect(url, RUN, creds=creds, clock=clock)
    epoch = await bus.state.claim_epoch()
    await bus.state.left()  # as a Weaver does before it takes over
    trajectory = TrajectoryWriter(
        run_folder(state_dir, RUN), RUN, epoch, settings, active.versions, clock.now_ns()
    )
    controller = WatchedWeaver(settings, active, bus, clock, epoch, trajectory)
    controller.watch, controller.witness = Stopwatch(workers * rounds), witness
    controller.bus = bus
    await controller.start(Recovered(epoch=epoch))
    gc.freeze()  # as a Weaver does before it serves
    report(ready=True)
    await controller.run(controller.watch.over)
    trajectory.close()
    await bus.close()


def main() -> None:
    """Be the side that the command line names."""
    side, url, creds, state_dir, *sizes = sys.argv[1:]
    workers, rounds = map(int, sizes)
    if side == "bare":
        asyncio.run(bare(url, Path(creds), workers * rounds))
    else:
        asyncio.run(weaver(url, Path(creds), Path(state_dir), workers, rounds))


if __name__ == "__main__":
    main()
