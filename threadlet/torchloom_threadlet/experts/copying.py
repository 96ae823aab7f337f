"""States sent from one worker to another over the group of a generation."""

import torch
from torch import Tensor
from torch.distributed import ProcessGroup


def send_state(data: Tensor, target: int, group: ProcessGroup, tag: int) -> None:
    """Send bytes, ``(bytes,)`` of uint8, to a rank that calls :func:`receive_state`."""
    length = torch.tensor([len(data)])
    works = [group.send([length], target, tag), group.send([data], target, tag)]
    for work in works:
        work.wait()


def receive_state(source: int, group: ProcessGroup, tag: int) -> Tensor:
    """Return the bytes that a rank sends."""
    length = torch.zeros(1, dtype=torch.int64)
    group.recv([length], source, tag).wait()
    data = torch.empty(int(length), dtype=torch.uint8)
    group.recv([data], source, tag).wait()
    return data
