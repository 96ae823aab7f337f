"""A layer's whole state as one tensor of bytes: weights, optimizer, and scheduler; no pickle.

Eight bytes with the length of a JSON header, the header, then the tensors' bytes one after the
other.
"""

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torchloom_core.floor.errors import CheckpointError
from torchloom_threadlet.checkpoint.json_state import decode, dtype_named, encode
from torchloom_threadlet.layers.layer import Layer

_LENGTH = 8


def to_bytes(layer: Layer) -> Tensor:
    """Return the state, ``(bytes,)`` of uint8.

    Raises
    ------
    CheckpointError
        If the optimizer or scheduler keeps a value that JSON and tensors cannot hold.
    """
    tensors: dict[str, Tensor] = {}
    encoded = encode(state_of(layer), f"layer {layer.number}", tensors)
    flat = [tensor.detach().to("cpu").contiguous() for tensor in tensors.values()]
    described = [
        [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
        for name, tensor in zip(tensors, flat, strict=True)
    ]
    header = json.dumps([encoded, described]).encode()
    size = _LENGTH + len(header) + sum(tensor.nbytes for tensor in flat)
    data = torch.empty(size, dtype=torch.uint8, device="cpu")
    head = len(header).to_bytes(_LENGTH, "little") + header
    data[: len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
    at = len(head)
    for tensor in flat:
        data[at : at + tensor.nbytes] = tensor.reshape(-1).view(torch.uint8)
        at += tensor.nbytes
    return data


def load_bytes(layer: Layer, data: Tensor) -> None:
    """Give a layer the state that :func:`to_bytes` returned on another worker."""
    length = int.from_bytes(bytes(data[:_LENGTH].tolist()), "little")
    at = _LENGTH + length
    try:
        encoded, described = json.loads(bytes(data[_LENGTH:at].tolist()))
    except ValueError as error:
        raise CheckpointError(f"layer {layer.number}: need a state, was {error}") from None
    tensors: dict[str, Tensor] = {}
    for name, dtype, shape in described:
        tensor = torch.empty(shape, dtype=dtype_named(dtype), device="cpu")
        tensor.reshape(-1).view(torch.uint8).copy_(data[at : at + tensor.nbytes])
        tensors[name] = tensor
        at += tensor.nbytes
    load_state(layer, decode(encoded, tensors))


def state_of(layer: Layer) -> dict[str, Any]:
    """Return the states of a layer's module, optimizer and scheduler."""
    state: dict[str, Any] = {"module": layer.module.state_dict()}
    if layer.optimizer is not None:
        state["optimizer"] = layer.optimizer.state_dict()
    if layer.scheduler is not None:
        state["scheduler"] = layer.scheduler.state_dict()
    return state


def load_state(layer: Layer, state: Mapping[str, Any]) -> None:
    """Give a layer what :func:`state_of` returned."""
    layer.module.load_state_dict(state["module"])
    if layer.optimizer is not None:
        layer.optimizer.load_state_dict(state["optimizer"])
    if layer.scheduler is not None:
        layer.scheduler.load_state_dict(state["scheduler"])
