"""A torchft process group whose allreduce is compressed; its mode may change between steps."""

import time
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions
from torch.distributed import AllreduceOptions, ReduceOp
from torch.distributed.distributed_c10d import AllToAllOptions
from torchft.process_group import ProcessGroup

from torchloom_threadlet.compression.codecs import (
    LEAST_BYTES,
    LEAST_NUMBERS,
    Bucket,
    Codec,
    Feedback,
    Plain,
    Turn,
    edges,
)
from torchloom_threadlet.compression.collectives import (
    Collective,
    Exchange,
    Gather,
    HostWay,
    Peers,
    Way,
    drive,
    ring_bytes,
)
from torchloom_threadlet.compression.figures import Cost, Entry, Figures, Late, Meter, Overlap
from torchloom_threadlet.compression.modes import MODES, NONE, make_codecs, refusal
from torchloom_threadlet.compression.ordered import OrderedProcessGroup
from torchloom_threadlet.compression.staging import Accelerator, DeviceWay, StagedWay, answer_to
from torchloom_threadlet.compression.work import CompressedWork, Lane

_PLAIN = Plain()
_MOST_AT_ONCE = 16
_MOST_NUMBERS = 2**31 - 1
_HOST_BACKEND = "torchft-gloo"
"""The backend that sends from the host's memory."""

_NO_GAIN = {NONE: 0, "bf16": 2, "fp16": 2}
"""The bytes of a number up to which a mode saves nothing; 0 for modes that always save."""


class CompressedProcessGroup(OrderedProcessGroup):
    """Wraps any torchft process group: ``CompressedProcessGroup(ProcessGroupGloo(...))``.

    Sums and averages of a single float32, bf16 or fp16 tensor of at least 1024 numbers are
    compressed; other collectives pass unchanged. Set :attr:`mode`, :attr:`concurrent_allreduces`
    and :attr:`bucket_bytes` between steps, on all ranks at the same step.

    Parameters
    ----------
    pg : torchft.ProcessGroup
        Does the communication.
    mode : str
        One of ``MODES``.
    topk_share : float
        The share of the numbers that ``topk`` sends, in (0, 1].
    powersgd_rank : int
        Columns of PowerSGD's factors.
    parameters : iterable of Tensor
        The model's, by which PowerSGD finds the matrices in DDP's flat buckets. Without them each
        bucket is one square matrix with arbitrary rows.

    Raises
    ------
    ValueError
        If an option is out of its range.

    Attributes
    ----------
    is_plain : bool
        Whether nothing is compressed for now, whatever the mode, because one rank could not.
    """

    def __init__(
        self,
        pg: ProcessGroup,
        mode: str = NONE,
        *,
        topk_share: float = 0.01,
        powersgd_rank: int = 4,
        parameters: Iterable[Tensor] = (),
    ) -> None:
        super().__init__(pg)
        self._codecs = make_codecs(topk_share, powersgd_rank, parameters)
        self._feedback = Feedback()
        self._meter = Meter()
        self._lane = Lane()
        self._accelerators: dict[torch.device, Accelerator] = {}
        self._verdict: bool | None = None
        self.mode = mode
        self.is_plain = False
        self.concurrent_allreduces = 1
        self.bucket_bytes = 0

    @property
    def mode(self) -> str:
        """How allreduces are compressed from the next one on."""
        return self._mode

    @mode.setter
    def mode(self, mode: str) -> None:
        if mode not in MODES:
            raise ValueError(f"need one of {', '.join(MODES)}, was {mode!r}")
        if why := refusal(mode, self._pg):
            raise ValueError(why)
        self._mode = mode

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes that the wrapped process group can do."""
        return tuple(mode for mode in MODES if not refusal(mode, self._pg))

    @property
    def concurrent_allreduces(self) -> int:
        """How many pieces of a reduction are in flight at once, from 1 to 16."""
        return self._concurrent_allreduces

    @concurrent_allreduces.setter
    def concurrent_allreduces(self, pieces: int) -> None:
        if not 1 <= pieces <= _MOST_AT_ONCE:
            raise ValueError(f"need 1 to {_MOST_AT_ONCE} pieces at once, was {pieces}")
        self._concurrent_allreduces = pieces

    @property
    def bucket_bytes(self) -> int:
        """The largest size of a piece in bytes, in the tensor's own type.

        0: each reduction is cut into as many pieces as are in flight at once.
        """
        return self._bucket_bytes

    @bucket_bytes.setter
    def bucket_bytes(self, most: int) -> None:
        if most != 0 and most < LEAST_BYTES:
            raise ValueError(f"need 0, or at least {LEAST_BYTES} bytes, was {most}")
        self._bucket_bytes = most

    @property
    def part(self) -> Hashable:
        """The part of the model that is reduced from now on, if a step reduces only a part.

        For instance the fragment that Streaming DiLoCo is about to synchronise.
        """
        return self._feedback.part

    @part.setter
    def part(self, part: Hashable) -> None:
        self._feedback.part = part

    def end_step(self, committed: bool) -> None:
        """Take the Manager's decision on the step, before the next one reduces anything.

        Only committed steps change the memories of modes with error feedback: the gradients of
        other steps are discarded, and so is their unsent part.
        """
        self._verdict = None
        self._feedback.end_step(committed)

    @property
    def overlap(self) -> Overlap:
        """The record of when the training thread waits for a work, by ``begin`` and ``end``."""
        return self._meter.overlap

    def take_figures(self) -> Figures:
        """Return the bytes and time of the allreduces since the last call."""
        return self._meter.take()

    def allreduce(self, tensors: list[Tensor], opts: AllreduceOptions | ReduceOp) -> Any:
        """Reduce ``tensors`` over all ranks, compressed if they can be."""
        op = getattr(opts, "reduceOp", opts)
        if not _can_be_compressed(tensors, op):
            return self._untouched(tensors, opts)
        if self._verdict is not None:
            self.end_step(self._verdict)
        (tensor,) = tensors
        turn = self._feedback.take_turn(tensor.numel())
        ranks, at_once = self.size(), self._concurrent_allreduces
        codec = self._codec(tensor)
        at = [0, tensor.numel()]
        if not (self.is_plain or codec.is_whole):
            at = edges(tensor.numel(), tensor.itemsize, self._bucket_bytes, at_once)
        way = self._way(tensor.device)
        # On an accelerator torch's gloo would allocate the host's memory anew each time.
        is_plain = codec is _PLAIN and len(at) == 2 and not isinstance(way, StagedWay)
        if ranks == 1 or is_plain:
            return self._untouched(tensors, opts)
        lane = self._lane
        lane.raise_if_ended()
        divisor = ranks if op == ReduceOp.AVG else 1
        bucket = Bucket(tensor, turn.memory, at)
        job = _Job(codec, bucket, turn, Peers(self._rank, ranks), divisor, at_once, way)
        work = CompressedWork(tensors, self._accelerators.get(tensor.device))
        reduce = partial(self._reduce, lane, job, self._meter.begin(tensor.nbytes))
        lane.add(partial(work.run, reduce))
        return work

    def _way(self, device: torch.device) -> Way:
        """Return the way of a reduction on this device."""
        if device.type == "cpu":
            return HostWay()
        if device not in self._accelerators:
            self._accelerators[device] = Accelerator(device)
        is_staged = self.getBackendName() == _HOST_BACKEND
        return (StagedWay if is_staged else DeviceWay)(self._accelerators[device])

    def _codec(self, tensor: Tensor) -> Codec:
        """Return the present mode's codec, or the plain sum if that is not larger."""
        if self.is_plain or tensor.itemsize <= _NO_GAIN.get(self._mode, 0):
            return _PLAIN
        return self._codecs.get(self._mode, _PLAIN)

    def reconfigure(self, opts: Any) -> Any:
        """Join another quorum; what is still in flight in this one fails."""
        self._lane.end(RuntimeError("the quorum is over"))
        self._meter.overlap.forget()
        configured = super().reconfigure(opts)
        self._lane = Lane()
        return configured

    def abort(self, errored: bool = True) -> None:
        """Abort the wrapped process group; it can be reconfigured."""
        super().abort(errored)
        self._lane.end(RuntimeError("the process group was aborted"))

    def shutdown(self) -> None:
        """Shut the wrapped process group down."""
        super().shutdown()
        self._lane.end(RuntimeError("the process group was shut down"))

    def errored(self) -> Exception | None:
        """Return the wrapped process group's error.

        The Manager calls it once a step, when it decides on it: without calls of :meth:`end_step`
        this ends the step, which counts as committed if nothing has failed here.
        """
        error = super().errored()
        # NCCL's errors end no reduction, as the host does not wait for it.
        self._verdict = error is None and not self._lane.ended
        return error

    @contextmanager
    def _run_context(self) -> Iterator[None]:
        """Issue uncompressed collectives after all compressed ones, as every rank does."""
        self._meter.overlap.begin("allreduce")
        try:
            self._lane.drain()
        finally:
            self._meter.overlap.end("allreduce")
        yield

    def _untouched(self, tensors: list[Tensor], opts: Any) -> Any:
        began = time.perf_counter()
        entry = self._meter.begin(sum(tensor.nbytes for tensor in tensors))
        cost = Cost()
        try:
            work = super().allreduce(tensors, opts)
            if all(tensor.device.type == "cpu" for tensor in tensors):
                sent = ring_bytes(tensors[0], self.size())
                ended = partial(self._meter_untouched, entry, began, sent)
                work.get_future().add_done_callback(ended)
                return work
        except Exception:
            self._meter.end(entry, cost)
            raise
        self._meter.end(entry, cost)  # the host does not see the end of a launch on an accelerator
        return work

    def _meter_untouched(self, entry: Entry, began: float, sent: int, _: object) -> None:
        self._meter.end(entry, Cost(sent, wire_s=time.perf_counter() - began))

    def _reduce(self, lane: Lane, job: "_Job", entry: Entry) -> None:
        """Drive the codec over the wrapped process group, and write the result to the tensor."""
        began, ranks, sent, cost = time.perf_counter(), job.peers.ranks, 0, Cost()
        late: Late | None = None

        def issue(collective: Collective) -> tuple[Any, Tensor]:
            nonlocal sent
            sent += collective.sent_bytes(ranks)
            return lane.issue(partial(self._begin, collective, ranks))

        try:
            pieces = job.bucket.reductions(job.codec, job.peers)
            driven = drive(pieces, issue, job.at_once, job.way)
            totals, memories = zip(*driven.results, strict=True)
            with job.way.coding():
                lane.issue(partial(job.bucket.write, totals, job.divisor))
                self._feedback.stage(job.turn, job.bucket.remembered(memories))
            cost = Cost(sent, time.perf_counter() - began - driven.waited_s, driven.wire_s)
            if isinstance(job.way, DeviceWay):  # the host has only launched the coding
                cost, late = Cost(sent, wire_s=driven.wire_s), job.way.read
        finally:
            self._meter.end(entry, cost, late)

    def _begin(self, collective: Collective, ranks: int) -> tuple[Any, Tensor]:
        """Issue a collective; return its work, and the tensor of its answer."""
        if isinstance(collective, Exchange):
            rows = collective.rows
            answer = answer_to(rows, rows.shape)
            opts = AllToAllOptions()
            return self._pg.alltoall_base(answer, rows, [], [], opts), answer
        if isinstance(collective, Gather):
            row = collective.row
            answer = answer_to(row, (ranks, row.numel()))
            into = [list(answer.unbind())]
            return self._pg.allgather(into, [row], AllgatherOptions()), answer
        return self._pg.allreduce([collective.tensor], AllreduceOptions()), collective.tensor


@dataclass(frozen=True)
class _Job:
    """One requested reduction."""

    codec: Codec
    bucket: Bucket
    turn: Turn
    peers: Peers
    divisor: int
    at_once: int
    way: Way


def _can_be_compressed(tensors: list[Tensor], op: Any) -> bool:
    """Return whether any mode may compress a reduction of these."""
    # Several tensors in a call are summed into each other, which is left to the backend.
    if len(tensors) != 1:
        return False
    # Only in this order: an enumerated operation does not equal the options' one.
    if not (op == ReduceOp.SUM or op == ReduceOp.AVG):
        return False
    (tensor,) = tensors
    narrow = tensor.dtype in (torch.float32, torch.bfloat16, torch.float16)
    return narrow and not tensor.is_sparse and LEAST_NUMBERS <= tensor.numel() <= _MOST_NUMBERS
