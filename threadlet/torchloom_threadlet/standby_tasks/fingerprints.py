"""The weights that a script loaded for a standby task, and their fingerprint."""

import hashlib
from collections.abc import Iterable
from numbers import Integral
from typing import NamedTuple

import torch
from torch import Tensor

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
