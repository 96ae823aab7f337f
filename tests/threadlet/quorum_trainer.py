"""A torchft trainer for the tests: no timeout of its own ends a collective before a test does."""

import argparse
import contextlib
import ctypes
import hashlib
import json
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed import TCPStore
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.local_sgd import LocalSGD

from tests.threadlet.fake_accelerator import FakeAccelerator
from tests.threadlet.nccl_stand_in import NcclStandIn
from torchloom_threadlet.compression import MODES, CompressedProcessGroup
from torchloom_threadlet.compression.staging import DeviceWay
from torchloom_threadlet.torchft import attach

FOR_EVER = timedelta(hours=1)


class Plants(ProcessGroupGloo):
    """Dies, hangs, stops or raises in an allreduce, after a number of them among so many groups.

    Or does for a while what is no hang, several kinds in turn, each after a number of steps.
    """

    def __init__(self, operations, among, after, for_s):
        super().__init__(timeout=FOR_EVER)
        self._operations, self._among, self._after, self._for_s = operations, among, after, for_s
        self._left = after
        self.loom = None

    def allreduce(self, tensors, opts):
        self._left -= self.size() == self._among
        if self._left or self.size() != self._among or not self._operations:
            return super().allreduce(tensors, opts)
        operation, self._left = self._operations.pop(0), self._after
        if operation == "raise":
            raise RuntimeError("planted")
        if operation == "hang":
            time.sleep(3600)
        if operation == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if operation == "hold":
            hold_the_gil(self._for_s)
        if operation == "compute":
            end = time.monotonic() + self._for_s
            while time.monotonic() < end:
                torch.mm(self._square, self._square)
        if operation == "phase":
            with self.loom.phase("evaluate", at_most_s=3 * self._for_s):
                hold_the_gil(self._for_s)
        work = super().allreduce(tensors, opts)
        if operation == "die":
            time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        return work

    _square = torch.ones(512, 512)


class DiesOnNccl(NcclStandIn):
    """Dies after a number of collectives among so many groups, while the others wait for it."""

    def __init__(self, dies, among, after):
        super().__init__(timeout=FOR_EVER)
        self._left, self._among = after if dies else -1, among

    @contextlib.contextmanager
    def _run_context(self):
        self._left -= self.size() == self._among
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        yield


class OnADevice(CompressedProcessGroup):
    """Reduces the host's tensors in the way of a device's."""

    def _way(self, device):
        return DeviceWay(FakeAccelerator())


def hold_the_gil(seconds):
    ctypes.PyDLL(None).usleep(round(seconds * 1e6))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--lighthouse", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument("--sync-every", type=int, default=0, help="LocalSGD, else DDP")
    parser.add_argument("--plant", type=lambda text: text.split(","), default=[])
    parser.add_argument("--for-s", type=float, default=0.0, help="duration of work that is no hang")
    parser.add_argument("--among", type=int, default=0, help="groups, when it happens")
    parser.add_argument("--after", type=int, default=5, help="allreduces among so many")
    parser.add_argument("--nccl", choices=MODES, help="on a stand-in for NCCL, in this mode")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Linear(options.width, options.width)
    inner = torch.optim.SGD(model.parameters(), lr=1e-3)
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    loom = attach(group=options.group)
    if options.nccl:
        pg = OnADevice(DiesOnNccl(options.plant, options.among, options.after), options.nccl)
    else:
        pg = Plants(options.plant, options.among, options.after, options.for_s)
        pg.loom = loom
    manager = Manager(
        pg=pg,
        load_state_dict=lambda state: model.load_state_dict(state),
        state_dict=lambda: model.state_dict(),
        min_replica_size=1,
        use_async_quorum=False,
        quorum_retries=100,
        timeout=FOR_EVER,
        quorum_timeout=timedelta(seconds=60),
        replica_id=loom.group,
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        lighthouse_addr=options.lighthouse,
        hostname="localhost",
    )
    loom.manage(manager, inner)
    errors = []
    report_error = manager.report_error
    manager.report_error = lambda error: (errors.append(str(error)), report_error(error))
    with options.journal.open("a", buffering=1) as journal:
        run = local_sgd if options.sync_every else ddp
        for committed in run(options, manager, model, inner):
            line = {
                "event": "step",
                "step": manager.current_step(),
                "committed": committed,
                "participants": manager.num_participants(),
                "errors": errors[:],
                "weights": hashlib.sha256(model.weight.detach().numpy().tobytes()).hexdigest(),
            }
            errors.clear()
            journal.write(json.dumps(line) + "\n")
            if not loom.step() or manager.current_step() >= options.steps:
                break
    time.sleep(2)
    manager.shutdown()


def ddp(options, manager, model, inner):
    optimizer = Optimizer(manager, inner)
    parallel = DistributedDataParallel(manager, model)
    share = 1.0 + int(options.group[-1])  # the groups' gradients differ
    while True:
        optimizer.zero_grad()
        step = manager.current_step()
        time.sleep(options.step_s)
        parallel(torch.full((1, options.width), share)).sum().backward()
        optimizer.step()
        yield manager.current_step() > step


def local_sgd(options, manager, model, inner):
    with LocalSGD(manager, model, inner, sync_every=options.sync_every):
        while True:
            step = manager.current_step()
            inner.zero_grad()
            time.sleep(options.step_s)
            model(torch.ones(1, options.width)).sum().backward()
            inner.step()
            yield manager.current_step() > step


if __name__ == "__main__":
    main()
