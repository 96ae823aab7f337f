import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.deadlines import DEADLINE_S
from tests.pipeline.live_worker import attached, main
from tests.pipeline.programs import batch
from tests.waiting import until

pytestmark = pytest.mark.integration


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

    def start(self, steps, *workers):
        for worker in workers:
            arguments = (worker, self.address, steps, str(self.folder))
            self.processes[worker] = self.fork.Process(target=main, args=arguments)
            self.processes[worker].start()

    def losses(self, worker):
        """Return the losses that a worker has seen, by step."""
        path = self.folder / f"{worker}.losses"
        lines = path.read_text().splitlines() if path.exists() else []
        return {int(step): float(loss) for step, loss in map(str.split, lines)}

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


@pytest.fixture
def fleet(tmp_path):
    made = []

    def make(*args, **kwargs):
        made.append(Fleet(tmp_path, *args, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.close()


def undisturbed(steps):
    """Return the losses and final weights of one worker that trains alone."""
    with attached("alone", None) as pipeline:
        losses = {}
        while pipeline.steps < steps:
            loss = pipeline.step(lambda replica: batch(pipeline.steps, replica))
            losses[pipeline.steps] = loss
        weights = {number: layer.weights for number, layer in pipeline.layers.items()}
    return losses, weights


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    assert all(torch.equal(weights, expected[number]) for number, weights in found.items())


def test_a_pipeline_goes_on_without_a_killed_worker_as_if_nothing_was(fleet):
    steps = 25
    four = fleet(4)
    four.start(steps, "w0", "w1", "w2", "w3")
    four.kill("w1", after_step=5)
    found = four.weights("w0", "w2", "w3")
    losses, weights = undisturbed(steps)
    assert four.losses("w0") == losses
    assert_same(found, weights)


@pytest.mark.long
def test_a_new_worker_takes_the_place_of_a_killed_one(fleet):
    steps = 600
    five = fleet(4)
    five.start(steps, "w0", "w1", "w2", "w3")
    five.kill("w0", after_step=5)
    until(lambda: max(five.losses("w1")) >= 10)
    five.start(steps, "w4")
    until(lambda: five.losses("w4"))
    found = five.weights("w1", "w2", "w3", "w4")
    losses, weights = undisturbed(steps)
    assert five.losses("w1") == losses
    seen = {step: loss for step, loss in five.losses("w4").items() if loss == loss}
    assert seen.items() <= losses.items()
    assert_same(found, weights)


@pytest.mark.long
def test_two_workers_killed_at_once_cost_no_step(fleet):
    steps = 40
    six = fleet(6)
    six.start(steps, *(f"w{number}" for number in range(6)))
    six.kill("w0", after_step=5)
    six.kill("w1", after_step=5)
    found = six.weights("w2", "w3", "w4", "w5")
    losses, weights = undisturbed(steps)
    assert six.losses("w2") == losses
    assert_same(found, weights)
