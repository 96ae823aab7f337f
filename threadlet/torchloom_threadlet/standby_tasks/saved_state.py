"""Saves and restores, to the bit, the state of what a script trains and its random numbers."""

import copy
import random
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn


class Stateful(Protocol):
    """An optimizer, a scheduler, or another object whose state a step changes."""

    def state_dict(self) -> Any:
        """Return the state."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Load a state."""


class SavedState:
    """The state of a model and of other objects at the time of construction.

    It includes the model's structure: an added layer or another dtype is undone as well.
    """

    def __init__(self, model: nn.Module, *others: Stateful) -> None:
        self._model = model
        made_of: list[MutableMapping[str, Any]] = [
            own
            for module in model.modules()
            for own in (module._parameters, module._buffers, module._modules)
        ]
        self._parts = [(own, dict(own)) for own in made_of]
        self._tensors = [
            (tensor, tensor.data) for tensor in (*model.parameters(), *model.buffers())
        ]
        self._state = copy.deepcopy(model.state_dict())
        self._default_dtype = torch.get_default_dtype()
        self._has_gradients = torch.is_grad_enabled()
        self._others = [(other, copy.deepcopy(other.state_dict())) for other in others]
        self._modes = [(module, module.training) for module in model.modules()]
        self._gradients = [
            (weight, None if weight.grad is None else weight.grad.clone())
            for weight in model.parameters()
        ]

    def restore(self) -> None:
        """Restore all of it; may be called again."""
        torch.set_default_dtype(self._default_dtype)
        torch.set_grad_enabled(self._has_gradients)
        for own, before in self._parts:
            own.clear()
            own.update(before)
        for tensor, data in self._tensors:
            if _place(tensor) != _place(data):
                tensor.data = data
        self._model.load_state_dict(self._state)
        for other, state in self._others:
            # An optimizer takes the tensors themselves, and then changes them in place.
            other.load_state_dict(copy.deepcopy(state))
        for module, training in self._modes:
            module.training = training
        for weight, gradient in self._gradients:
            weight.grad = None if gradient is None else gradient.clone()


def _place(tensor: Tensor) -> tuple[int, torch.dtype, torch.Size]:
    return tensor.data_ptr(), tensor.dtype, tensor.shape


@contextmanager
def restoring(model: nn.Module, *others: Stateful) -> Iterator[SavedState]:
    """Restore a model's weights, buffers, gradients and modes afterwards, and other states."""
    before = SavedState(model, *others)
    try:
        yield before
    finally:
        before.restore()


@contextmanager
def restoring_random() -> Iterator[None]:
    """Restore the random states of torch, Python and, if it is loaded, NumPy afterwards."""
    numpy = sys.modules.get("numpy")
    own, numpys = random.getstate(), numpy.random.get_state() if numpy else None
    has_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count()) if has_gpu else ()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(own)
        if numpy:
            numpy.random.set_state(numpys)


def seed_all(seed: int) -> None:
    """Seed all random number generators."""
    torch.manual_seed(seed)
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)
