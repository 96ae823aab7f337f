"""A trainer that saves its checkpoints in a thread, as torch.distributed.checkpoint can."""

import os
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import torchloom_threadlet

FOLDER = Path("checkpoints")
WRITE_S = 0.3

loom = torchloom_threadlet.attach()
writing: list[Future[None]] = []


def write(step: int) -> None:
    time.sleep(WRITE_S)
    new = FOLDER / "step.new"
    new.write_text(str(step))
    with new.open() as file:
        os.fsync(file.fileno())
    new.replace(FOLDER / "step")


loom.on("flush", lambda: wait(writing))
step = 0
with ThreadPoolExecutor(1) as writer:
    while loom.step(step=step):
        step += 1
        time.sleep(0.05)
        if step % 10 == 0:
            writing = [each for each in [*writing, writer.submit(write, step)] if not each.done()]
