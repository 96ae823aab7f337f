"""The shapes of what the layers pass on, computed once without data or memory."""

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchloom_core.floor.errors import ConfigError
from torchloom_threadlet.checkpoint.json_state import dtype_named
from torchloom_threadlet.pipeline.layers import Program

Values = tuple[Tensor, ...]


def described(batch: Any, micro_batches: int, place: str) -> str:
    """Return shape and dtype of a micro-batch of these inputs, as JSON.

    Raises
    ------
    ConfigError
        If the inputs are no tensors, or cannot be split into equal micro-batches.
    """
    specs = []
    for tensor in as_values(batch, place):
        if not tensor.ndim or len(tensor) % micro_batches:
            raise ConfigError(
                f"{place}: need inputs that {micro_batches} micro-batches divide, "
                f"was a shape of {tuple(tensor.shape)}"
            )
        shape = [len(tensor) // micro_batches, *tensor.shape[1:]]
        specs.append([shape, str(tensor.dtype).removeprefix("torch.")])
    return json.dumps(specs)


def as_values(value: Any, place: str) -> Values:
    """Return a tensor, or a tuple of tensors, as a tuple.

    Raises
    ------
    ConfigError
        If it is neither.
    """
    values = tuple(value) if isinstance(value, Sequence) else (value,)
    for each in values:
        if not isinstance(each, Tensor):
            raise ConfigError(f"{place}: need tensors, was {type(each).__name__}")
    return values


def boundaries(program: Program, inputs: str) -> tuple[Values, ...]:
    """Return what goes into each layer, and what the last one returns, on the meta device.

    Parameters
    ----------
    inputs : str
        From :func:`described`.

    Returns
    -------
    tuple of tuple of Tensor, (layers + 1,)

    Raises
    ------
    ConfigError
        If a layer refuses its input; the message names it.
    """
    values: Values = tuple(
        torch.empty(shape, dtype=dtype_named(dtype), device="meta")
        for shape, dtype in json.loads(inputs)
    )
    found = [values]
    for number, module in enumerate(program.on_meta):
        try:
            output = module(*values)
        except Exception as error:  # noqa: BLE001 - the user's layer
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            shapes = ", ".join(str(tuple(value.shape)) for value in values)
            raise ConfigError(
                f"pipeline: layer {number} does not take shapes {shapes}: {reason}"
            ) from None
        values = tuple(
            torch.empty(value.shape, dtype=value.dtype, device="meta").requires_grad_(
                value.requires_grad
            )
            for value in as_values(output, f"pipeline: layer {number}")
        )
        found.append(values)
    return tuple(found)
