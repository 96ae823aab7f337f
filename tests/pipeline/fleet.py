"""Workers of the small program in processes of their own, and their rendezvous."""

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import torch

from tests.deadlines import DEADLINE_S
from tests.pipeline.live_worker import attached, main
from tests.pipeline.programs import batch
from tests.waiting import until


class Fleet:
    """A rendezvous, and workers in processes of their own."""

    def __init__(self, folder, workers, standbys=0):
        self.folder, self.processes = folder, {}
        command = [Path(sys.executable).with_name("torchloom"), "rendezvous"]
        self.rendezvous = subprocess.Popen(
            [*command, f"--workers={workers}", f"--standbys={standbys}", "--bind=127.0.0.1:0"],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address = self.rendezvous.stdout.readline().split()[-1]
        self.fork = multiprocessing.get_context("forkserver")
        self.fork.set_forkserver_preload(["tests.pipeline.live_worker"])

    def start(self, steps, *workers, **more):
        for worker in workers:
            arguments = (worker, self.address, steps, str(self.folder))
            self.processes[worker] = self.fork.Process(target=main, args=arguments, kwargs=more)
            self.processes[worker].start()

    def _column(self, worker, column):
        path = self.folder / f"{worker}.losses"
        text = path.read_text() if path.exists() else ""
        lines = map(str.split, text[: text.rfind("\n") + 1].splitlines())
        return {int(line[0]): float(line[column]) for line in lines if line[column] != "None"}

    def losses(self, worker):
        """Return the losses that a worker has seen, by step."""
        return self._column(worker, 1)

    def rates(self, worker):
        """Return the rate with which a worker made the step after each; none before its part."""
        return self._column(worker, 2)

    def kill(self, worker, after_step):
        until(lambda: max(self.losses(worker), default=0) >= after_step)
        os.kill(self.processes[worker].pid, signal.SIGKILL)

    def weights(self, *workers):
        """Return the final weights of all layers, once these workers have finished."""
        for worker in workers:
            self.processes[worker].join(DEADLINE_S)
        assert [self.processes[worker].exitcode for worker in workers] == [0] * len(workers)
        found = [torch.load(p, weights_only=True) for p in self.folder.glob("*.pt")]
        return {number: weights for held in found for number, weights in held.items()}

    def close(self):
        for process in self.processes.values():
            process.kill()
            process.join()
        self.rendezvous.terminate()
        self.rendezvous.communicate(timeout=DEADLINE_S)


def undisturbed(steps, knobs=None, **changes):
    """Return the losses and final weights of one worker that trains alone.

    ``knobs``: the values that are set after a step, by step.
    """
    with attached("alone", None, **changes) as pipeline:
        losses = {}
        while pipeline.steps < steps:
            loss = pipeline.step(lambda replica: batch(pipeline.steps, replica))
            losses[pipeline.steps] = loss
            for name, value in (knobs or {}).get(pipeline.steps - 1, {}).items():
                pipeline.loom.adapter.worker.actuators.set_knob(name, value)
        weights = {number: layer.weights for number, layer in pipeline.layers.items()}
    return losses, weights


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    assert all(torch.equal(weights, expected[number]) for number, weights in found.items())
