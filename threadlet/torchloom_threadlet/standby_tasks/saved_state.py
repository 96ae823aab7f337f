"""The state that a standby task loads: its fingerprint, and all of it restored, to the bit."""

import copy
import hashlib
import random
import sys
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from numbers import Integral
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from torchloom_threadlet.cleaning import whole

_AT_ONCE = 1 << 22
"""Elements at a time, each of which takes eight bytes of temporary memory."""

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(weights: Iterable[Tensor]) -> str:
    """Return 16 hexadecimal digits; equal weights have equal ones, on any device.

    Each bit pattern is weighted by its position, in integers that wrap round, so that the order of
    the sum does not matter. It does not protect against deliberate collisions.

    Examples
    --------
    >>> one = torch.tensor([1.0, 2.0])
    >>> [fingerprint([one]) == fingerprint([other]) for other in (one.clone(), one.flip(0))]
    [True, False]
    """
    digest = hashlib.blake2b(digest_size=8)
    for weight in weights:
        real = torch.view_as_real(weight) if weight.is_complex() else weight
        flat = real.detach().contiguous().reshape(-1)
        total = 0
        bits = flat.view(_BITS[flat.element_size()])
        for begin in range(0, len(bits), _AT_ONCE):
            part = bits[begin : begin + _AT_ONCE]
            places = torch.arange(begin, begin + len(part), device=part.device)
            total += int(((2 * places + 1) * part).sum())
        digest.update(f"{tuple(weight.shape)} {weight.dtype} {total};".encode())
    return digest.hexdigest()


class Loaded(NamedTuple):
    """The fingerprint of the weights, and their step of the run; -1: unknown."""

    at: str
    of_step: int


def loaded(step: object, weights: Iterable[Tensor]) -> Loaded:
    """Return the loaded weights; ``step`` is what the script's ``load`` returned, if a step."""
    is_step = isinstance(step, Integral) and not isinstance(step, bool)
    return Loaded(fingerprint(weights), whole(step) if is_step else -1)


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
