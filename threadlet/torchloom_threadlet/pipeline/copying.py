"""Layers that go from one worker to another, at the beginning of a generation."""

from collections.abc import Iterator, Mapping, Sequence

import torch

from torchloom_core.wire.assignment import Copy
from torchloom_threadlet.layers.layer import Layer
from torchloom_threadlet.layers.layer_state import load_bytes, to_bytes
from torchloom_threadlet.pipeline.messages import Messages
from torchloom_threadlet.pipeline.user_code import of_the_user

_COPIES = 3 << 20  # tags, apart from those of a step


def copy(
    copies: Sequence[Copy],
    worker: str,
    members: Sequence[str],
    messages: Messages,
    has: Mapping[int, Layer],
    missing: Mapping[int, Layer],
) -> Iterator[int]:
    """Send and receive layers, in the order of ``copies``; yield each that has come.

    Parameters
    ----------
    members : sequence of str
        The workers of the group, by rank.
    has : mapping of int to Layer
        What this worker can send.
    missing : mapping of int to Layer
        New layers, which are given the state that is received.
    """
    for number, one in enumerate(copies):
        tag = _COPIES + 2 * number
        if one.source == worker:
            data = to_bytes(has[one.layer])
            target = members.index(one.target)
            size = torch.tensor([len(data)], dtype=torch.int64, device="cpu")
            messages.send(size, target, tag)
            messages.send(data, target, tag + 1)
        elif one.target == worker:
            source = members.index(one.source)
            size = torch.empty(1, dtype=torch.int64, device="cpu")
            messages.receive(size, source, tag)
            data = torch.empty(int(size), dtype=torch.uint8, device="cpu")
            messages.receive(data, source, tag + 1)
            with of_the_user():
                load_bytes(missing[one.layer], data)
            yield one.layer
