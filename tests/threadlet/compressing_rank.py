"""A rank of a compressed process group that runs the commands of its standard input, by line."""

import hashlib
import json
import socket
import struct
import sys
import time
from datetime import timedelta

import torch
import torchft
from torch._C._distributed_c10d import AllgatherOptions
from torch.distributed import AllreduceOptions, ReduceOp
from torch.distributed.distributed_c10d import AllToAllOptions

from tests.threadlet.gloo_peer import answer, configure, ended
from torchloom_threadlet import gloo_sockets
from torchloom_threadlet.adapters.torchft.connections import Connections
from torchloom_threadlet.compression import CompressedProcessGroup

SETTLED_S = 0.1


def digest(tensor):
    return hashlib.sha256(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def numbers_of(seed, rank, shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1000 * seed + rank))


def options(op):
    opts = AllreduceOptions()
    opts.reduceOp = getattr(ReduceOp, op)
    return opts


class Rank:
    def __init__(self, number, timeout_s=30.0, device="cpu", backend="Gloo"):
        self.number, self.device = number, torch.device(device)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        backend = getattr(torchft, f"ProcessGroup{backend}")
        self.pg = CompressedProcessGroup(backend(timeout=timedelta(seconds=timeout_s)))
        self.connections = Connections(self.pg)
        self.works = []

    def handle(self):
        return self.pg.get_reconfigure_handle()

    def configure(self, uuid, handles):
        configure(self.pg, uuid, handles)

    def patience(self, timeout_s):
        self.pg.set_timeout(timedelta(seconds=timeout_s))

    def mode(self, mode):
        self.pg.mode = mode

    def pieces(self, at_once, most_bytes=0):
        self.pg.concurrent_allreduces, self.pg.bucket_bytes = at_once, most_bytes

    def end_step(self, committed):
        self.pg.end_step(committed)

    def step(self, seed, shapes, committed=True, op="SUM"):
        """Reduce tensors of these shapes, all in flight at once, and return the results."""
        tensors = [numbers_of(seed + place, self.number, s) for place, s in enumerate(shapes)]
        tensors = [tensor.to(self.device) for tensor in tensors]
        works = [self.pg.allreduce([tensor], options(op)) for tensor in tensors]
        for work in works:
            work.wait()
        self.pg.end_step(committed)
        return [digest(tensor) for tensor in tensors]

    def reduced(self, shape, fill, op="SUM", dtype="float32", transposed=False, at=None):
        """Reduce one tensor; return its least, its largest and how many numbers are not finite."""
        tensor = torch.full(shape, fill, dtype=getattr(torch, dtype))
        if at is not None:
            tensor.view(-1)[at[0]] = float(at[1])
        if transposed:
            tensor = tensor.t()
        work = self.pg.allreduce([tensor], options(op))
        work.wait()
        assert work.get_future().wait()[0] is tensor
        finite = tensor[tensor.isfinite()].double()
        span = [finite.min().item(), finite.max().item()] if finite.numel() else []
        return [*span, int((~tensor.isfinite()).sum())]

    def summed_into_each_other(self):
        tensors = [torch.full((2048,), value) for value in (1.0, 10.0)]
        self.pg.allreduce(tensors, options("SUM")).wait()
        return [tensor.unique().tolist() for tensor in tensors]

    def broadcast_between(self, numbers):
        """Broadcast while a compressed reduction is in flight."""
        tensor, message = torch.ones(numbers), torch.full((4,), float(self.number))
        work = self.pg.allreduce([tensor], options("SUM"))
        self.pg.broadcast_one(message, 0).wait()
        work.wait()
        return message.tolist()

    def begin(self, numbers):
        self.works = [self.pg.allreduce([torch.ones(n)], options("SUM")) for n in numbers]

    def ended(self):
        """Return how each begun reduction has ended."""
        return [_ended(work) for work in self.works]

    def refused(self, numbers):
        try:
            self.pg.allreduce([torch.ones(numbers)], options("SUM"))
        except (RuntimeError, AssertionError) as error:  # torchft asserts that there is one
            return str(error)
        return ""

    def named(self, group):
        """Take a replica group's name, and put its place in handles from now on."""
        self.pg.set_rank_info(f"{group}:uuid", 0, 1)
        self.pg.takes_order = True

    def order(self, order):
        self.pg.ring_order = order
        return self.pg.get_reconfigure_handle()

    def reorder(self, handles, attempt):
        try:
            self.pg.reorder(handles, attempt)
        except RuntimeError as error:
            return str(error)
        return ""

    def links(self):
        """Return each connection's own port, the peer's port, and the bytes sent."""
        now, before = self._links(), []
        while now != before:
            time.sleep(SETTLED_S)
            now, before = self._links(), now
        return now

    def _links(self):
        return [
            [opened.getsockname()[1], opened.getpeername()[1], _sent_over(opened)]
            for opened in gloo_sockets.open_sockets(self.connections._inodes)
        ]

    def collectives(self, rank, ranks):
        """Return the results of all collectives that name a rank, for torchft's ``rank``."""
        own = torch.tensor([float(rank)])
        message = own.clone()
        self.pg.broadcast_one(message, 1).wait()
        gathered = [torch.zeros(1) for _ in range(ranks)]
        self.pg.allgather([gathered], [own], AllgatherOptions()).wait()
        flat = torch.zeros(ranks)
        self.pg.allgather_into_tensor_coalesced([flat], [own], AllgatherOptions()).wait()
        rows, even = torch.arange(ranks) + 10.0 * rank, torch.zeros(ranks)
        self.pg.alltoall_base(even, rows, [], [], AllToAllOptions()).get_future().wait()
        # Each rank gets one number more than the rank before.
        sizes = [1 + peer for peer in range(ranks)]
        rows = torch.cat([torch.full((size,), 10.0 * rank + size) for size in sizes])
        uneven = torch.zeros(ranks * sizes[rank])
        into = [sizes[rank]] * ranks
        self.pg.alltoall_base(uneven, rows, into, sizes, AllToAllOptions()).wait()
        passed, (after, before) = torch.zeros(1), ((rank + 1) % ranks, (rank - 1) % ranks)
        works = [self.pg.send([own], after, 7), self.pg.recv([passed], before, 7)]
        for work in works:
            work.wait()
        answers = message, torch.cat(gathered), flat, even, uneven, passed
        return [answer.tolist() for answer in answers]

    def cut(self, uuid):
        return self.connections.cut(uuid)

    def sent(self):
        """Return the bytes the sockets have sent, once all has arrived, and the computed bytes."""
        now, before = _acknowledged(self.connections._inodes), -1
        while now != before:
            time.sleep(SETTLED_S)
            now, before = _acknowledged(self.connections._inodes), now
        return [now, self.pg.take_figures().cost.sent_bytes]

    def figures(self):
        return self.pg.take_figures().metrics()


def _ended(work):
    """Return how a work has ended; its future must have the same result."""
    end = ended(work)
    future_end = ended(work.get_future())
    assert (end, work.is_success()) == (future_end, not future_end)
    return end


def _acknowledged(inodes):
    total = 0
    for opened in gloo_sockets.open_sockets(inodes):
        total += _sent_over(opened)
    return total


def _sent_over(opened):
    info = opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    return struct.unpack_from("Q", info, gloo_sockets._TCP_BYTES_AT)[0]


def main():
    torch.set_num_threads(1)
    rank = Rank(*map(json.loads, sys.argv[1:]))
    for line in sys.stdin:
        name, arguments = json.loads(line)
        answer(json.dumps(getattr(rank, name)(**arguments)))


if __name__ == "__main__":
    main()
