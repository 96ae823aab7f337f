"""The ranks that save one checkpoint together: what they have to agree on before training."""

import contextlib
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_MEETING = timedelta(seconds=10)


class SavingRanks:
    """The ranks of a process group, all of ``torch.distributed`` by default, or one alone.

    Construct it on all ranks at once: they make a gloo group that nothing else uses.
    """

    def __init__(self, process_group: Any = None) -> None:
        self.group: Any = None
        self.rank, self.count = 0, 1
        if not dist.is_available() or not dist.is_initialized():
            return
        ranks = None if process_group is None else dist.get_process_group_ranks(process_group)
        self.rank, self.count = dist.get_rank(process_group), dist.get_world_size(process_group)
        if self.count > 1:
            self.group = dist.new_group(
                ranks, backend="gloo", use_local_synchronization=ranks is not None
            )

    def meet(self, name: str) -> None:
        """Wait until all ranks are here, or give up on all of them.

        Unlike a collective it leaves no rank behind: the last one to come, or the first one that
        has waited for 10 s, decides for all.

        Parameters
        ----------
        name : str
            Of this meeting alone, the same on all ranks.

        Raises
        ------
        TimeoutError
            If a rank has not come.
        """
        if self.group is None:
            return
        store = dist.distributed_c10d._get_default_store()
        came, outcome = f"torchloom/{name}/came", f"torchloom/{name}/outcome"
        if store.add(came, 1) == self.count:
            store.compare_set(outcome, "", "all")
        with contextlib.suppress(RuntimeError):
            store.wait([outcome], _MEETING)
        if bytes(store.compare_set(outcome, "", "some")) != b"all":
            seconds = _MEETING.total_seconds()
            raise TimeoutError(f"need all {self.count} ranks within {seconds:g} s, was fewer")

    def first(self, text: str) -> str:
        """Return rank 0's text on all ranks."""
        if self.group is None:
            return text
        data = text.encode()
        size = _number(len(data))
        source = dist.get_global_rank(self.group, 0)
        dist.broadcast(size, source, group=self.group)
        content = torch.empty(int(size), dtype=torch.uint8, device="cpu")
        if self.rank == 0 and data:
            content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if len(content):
            dist.broadcast(content, source, group=self.group)
        return bytes(content.tolist()).decode()

    def all(self, here: bool) -> bool:
        """Return whether it is True on all ranks."""
        if self.group is None:
            return here
        least = _number(here)
        dist.all_reduce(least, dist.ReduceOp.MIN, group=self.group)
        return bool(least[0])

    def gather(self, text: str) -> list[str]:
        """Return the texts of all ranks, in their order, on all ranks."""
        if self.group is None:
            return [text]
        data = text.encode()
        sizes = [_number(0) for _ in range(self.count)]
        dist.all_gather(sizes, _number(len(data)), group=self.group)
        longest = max(1, *(int(size) for size in sizes))
        padded = bytearray(data.ljust(longest, b"\0"))
        own = torch.frombuffer(padded, dtype=torch.uint8)
        found = [torch.empty_like(own) for _ in range(self.count)]
        dist.all_gather(found, own, group=self.group)
        return [
            bytes(content[: int(size)].tolist()).decode()
            for content, size in zip(found, sizes, strict=True)
        ]


def _number(value: int) -> Tensor:
    """Return it for a collective of gloo: on the host, whatever the script's default device is."""
    return torch.tensor([value], dtype=torch.int64, device="cpu")
