"""Batches and weights as bytes: msgpack and safetensors, never pickle."""

from collections.abc import Mapping
from typing import Any

import msgspec
import torch
from safetensors.torch import load, save

from torchloom_core.floor.errors import RolloutError

_TENSOR = 1


def encode_batch(batch: Mapping[str, Any]) -> bytes:
    """Return a batch as msgpack; a tensor in it is one of safetensors.

    Raises
    ------
    RolloutError
        If it contains something else than numbers, text, bytes, lists, dicts and tensors.
    """
    if not isinstance(batch, Mapping) or not all(isinstance(key, str) for key in batch):
        raise RolloutError("a rollout: need a dict whose keys are text")
    try:
        return msgspec.msgpack.encode(dict(batch), enc_hook=_encode)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise RolloutError(f"a rollout: {error}") from None


def decode_batch(body: memoryview) -> dict[str, Any]:
    """Return what :func:`encode_batch` was called with; RolloutError if it is something else."""
    try:
        batch: dict[str, Any] = msgspec.msgpack.decode(body, type=dict[str, Any], ext_hook=_decode)
    except Exception as error:  # noqa: BLE001 - safetensors raises errors of its own
        raise RolloutError(f"a rollout cannot be read: {error}") from None
    return batch


def encode_weights(weights: Mapping[str, torch.Tensor]) -> bytes:
    """Return weights as safetensors; those that share memory are stored each.

    Raises
    ------
    RolloutError
        If they are not dense tensors by name, or of a dtype that safetensors does not have.
    """
    is_by_name = isinstance(weights, Mapping) and all(isinstance(key, str) for key in weights)
    if not is_by_name:
        found = f"{type(weights).__module__}.{type(weights).__qualname__}"
        raise RolloutError(f"weights: need tensors by name, such as state_dict(), was a {found}")
    for name, tensor in weights.items():
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
            layout = getattr(tensor, "layout", type(tensor).__name__)
            raise RolloutError(f"weights: {name}: need a dense tensor, was {layout}")
    try:
        copied = {
            name: tensor.detach().to("cpu", copy=True).contiguous()
            for name, tensor in weights.items()
        }
        encoded: bytes = save(copied)
    except Exception as error:  # noqa: BLE001 - torch's and safetensors' own
        line = next(iter(str(error).splitlines()), "")
        raise RolloutError(f"weights cannot be sent: {type(error).__name__}: {line}") from None
    return encoded


def decode_weights(body: memoryview) -> dict[str, torch.Tensor]:
    """Return what :func:`encode_weights` was called with; RolloutError if it is something else."""
    try:
        weights: dict[str, torch.Tensor] = load(bytes(body))
    except Exception as error:  # noqa: BLE001 - safetensors raises errors of its own
        raise RolloutError(f"weights cannot be read: {error}") from None
    return weights


def _encode(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        tensor = value.detach().to("cpu", copy=True).contiguous()
        return msgspec.msgpack.Ext(_TENSOR, save({"": tensor}))
    raise TypeError(
        "need numbers, text, bytes, lists, dicts or tensors, "
        f"was a {type(value).__module__}.{type(value).__qualname__}"
    )


def _decode(code: int, data: memoryview) -> Any:
    if code != _TENSOR:
        raise ValueError(f"unknown extension {code}")
    return load(bytes(data))[""]
