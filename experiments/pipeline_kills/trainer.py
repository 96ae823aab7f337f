"""A worker's process: trains, notes each commit and each loss of a peer, and dies on command."""

import logging
import os
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from experiments.pipeline_kills.moments import Moment, Trigger
from experiments.pipeline_kills.program import attached, batch
from torchloom_threadlet.pipeline import worker as workers


def main(name: str, process: int, address: str, folder: str, commands: Connection) -> None:
    """Train until the step in the file ``end``; the log has a line for each event."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    logging.basicConfig(filename=f"{folder}/{process}-{name}.text", level=logging.INFO)
    with open(f"{folder}/{process}-{name}.log", "w", buffering=1) as log:

        def note(event: str, *values: Any) -> None:
            log.write(" ".join(map(str, (event, time.monotonic(), *values))) + "\n")

        trigger = Trigger(lambda phase: note("dying", phase))

        def listen() -> None:
            while True:
                try:
                    trigger.arm(Moment(*commands.recv()))
                except EOFError:
                    return

        _note_calls(note)
        threading.Thread(target=listen, daemon=True).start()
        _train(name, process, address, Path(folder), note)


def _note_calls(note: Any) -> None:
    """Note when this worker hears of a loss, and when it is ready to stand by."""
    fault, warm = workers.Worker._fault, workers.warm_up
    enter, end = workers.Worker._enter, workers.Group.end

    def noted_fault(self: Any, error: RuntimeError) -> None:
        note("known", self.number)
        fault(self, error)

    def noted_warm(*args: Any) -> None:
        warm(*args)
        note("warm", 0)

    def noted_enter(self: Any, *args: Any) -> None:
        why = self._begin.assignment.why
        enter(self, *args)
        note("begun", self.number, ",".join(map(str, self.held)), why)

    def noted_end(self: Any, generation: int) -> None:
        if generation == self._generation and self._ended < generation:
            note("known", generation)
        end(self, generation)

    workers.Worker._fault, workers.warm_up = noted_fault, noted_warm  # type: ignore[method-assign]
    workers.Worker._enter, workers.Group.end = noted_enter, noted_end  # type: ignore[method-assign]


def _train(name: str, process: int, address: str, folder: Path, note: Any) -> None:
    pipeline = attached(name, address)
    end = folder / "end"
    with pipeline:
        while not (end.exists() and pipeline.steps >= int(end.read_text())):
            loss = pipeline.step(lambda replica: batch(pipeline.steps, replica))
            if loss is None:
                return
            note("commit", pipeline.steps, repr(loss))
        weights = {number: layer.weights for number, layer in pipeline.layers.items()}
        torch.save(weights, folder / f"{process}-{name}.pt")
