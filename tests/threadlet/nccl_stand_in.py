"""A process group that behaves as torchft's on NCCL does, without a GPU: gloo under its name.

As on a GPU, a collective that fails raises nothing on the host: it goes on, as NCCL's kernels do,
until an abort, and leaves its answer undone. The error is that of torch's process group. An abort
closes the connections, so that the peers' collectives fail. gloo has no abort of its own: torch
would wait for its collectives where the last reference to it is given up.
"""

import socket
import threading

import torch
from torch._C._distributed_c10d import ErrorType
from torch.distributed import Work
from torchft import ProcessGroupGloo

from torchloom_threadlet.gloo_sockets import gloo_connections, shut, sockets


class Native:
    """torch's process group, whose backend can be asked for its error."""

    _device_types = (torch.device("cpu"),)

    def __init__(self, pg, inodes):
        self._pg, self.inodes = pg, inodes
        self.state = State()

    def __getattr__(self, name):
        return getattr(self._pg, name)

    def _get_backend(self, device):
        return self

    def get_error(self):
        return self.state.error

    def abort(self):
        shut(self.inodes, socket.SHUT_RDWR)
        self.state.aborted.set()


class State:
    """Of one communicator: a work has it, and not the group, which a thread of gloo cannot end."""

    def __init__(self):
        self.error = ErrorType.SUCCESS
        self.aborted = threading.Event()


class StandInWork(Work):
    def __init__(self, work, state):
        super().__init__()
        self._state = state
        self._future = torch.futures.Future()
        work.get_future().add_done_callback(self._end)

    def _end(self, future):
        try:
            answer = future.value()
        except RuntimeError:
            self._state.error = ErrorType.COMM_ERROR
            self._state.aborted.wait()
            answer = None
        self._future.set_result(answer)

    def wait(self, timeout=None):
        self._future.wait()
        return True

    def get_future(self):
        return self._future


class NcclStandIn(ProcessGroupGloo):
    _failed = None

    def getBackendName(self):
        return "torchft-nccl"

    def _create_pg(self, store, rank, world_size):
        before = frozenset(inode for inode, _ in sockets())
        pg = super()._create_pg(store, rank, world_size)
        self._failed = None
        return Native(pg, gloo_connections(before, world_size - 1))

    def _wrap_work(self, work, opts):
        return StandInWork(work, self.parent.state)

    def abort(self, errored=True):
        self._failed = RuntimeError("aborted")
        super().abort(errored)

    def errored(self):
        return self._failed
