"""The state of what a script trains, and of what it draws at random, put back to the bit."""

import copy
import random
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn


class Stateful(Protocol):
    """An optimizer, a scheduler, whatever else has a state that a step changes."""

    def state_dict(self) -> Any:
        """Return the state."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Take over a state."""


class Kept:
    """The state of a model, and of what trains it, as it was when this was made.

    Also what it is made of: a layer that was put in, or weights of another type, are not left.
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

    def put_back(self) -> None:
        """Have it all as it was; as often as it is wanted."""
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
def kept(model: nn.Module, *others: Stateful) -> Iterator[Kept]:
    """Put back weights, buffers, gradients and modes of a model afterwards, and other states."""
    before = Kept(model, *others)
    try:
        yield before
    finally:
        before.put_back()


@contextmanager
def random_kept() -> Iterator[None]:
    """Put back afterwards what torch, Python's random and NumPy, if it is loaded, draw from."""
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
    """Have all that is drawn at random begin at a place of its own."""
    torch.manual_seed(seed)
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)
