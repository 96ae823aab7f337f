"""Floats of torch's types as float32, from bytes and back, in blocks and with scales of 16 bits."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class FloatKind(NamedTuple):
    """A type of floats.

    Attributes
    ----------
    stored : dtype
        As numpy stores it.
    least, most : float
        The least positive and the largest finite one.
    """

    stored: Any
    least: float
    most: float


FLOAT_KINDS = {
    "float32": FloatKind(np.dtype("<f4"), 2.0**-149, (2.0 - 2.0**-23) * 2.0**127),
    "float16": FloatKind(np.dtype("<f2"), 2.0**-24, 65504.0),
    "bfloat16": FloatKind(np.dtype("<u2"), 2.0**-133, (2.0 - 2.0**-7) * 2.0**127),
}
"""By torch's names; the order is part of the stored format."""


def read_floats(data: memoryview, dtype: str, begin: int, end: int) -> NDArray[np.float32]:
    """Return a copy of the floats from ``begin`` to ``end``, of shape (end - begin,)."""
    found = np.frombuffer(data, FLOAT_KINDS[dtype].stored)[begin:end]
    return from_upper_halves(found) if dtype == "bfloat16" else found.astype(np.float32)


def put_floats(
    values: NDArray[np.float32], dtype: str, into: memoryview, begin: int, end: int
) -> None:
    """Write floats to their places; none may be beyond the largest of the type."""
    stored = np.frombuffer(into, FLOAT_KINDS[dtype].stored)[begin:end]
    if dtype == "bfloat16":
        bits = values.view("<u4")
        stored[:] = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16  # to the nearest, ties to even
    else:
        stored[:] = values


def upper_halves(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the upper halves of finite floats that are not negative, rounded up."""
    return (values.astype("<f4").view("<u4") + 0xFFFF >> 16).astype("<u2")


def from_upper_halves(halves: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return the floats with these upper halves, which are also those of ``bfloat16``."""
    return (halves.astype("<u4") << 16).view("<f4")


def in_blocks(values: NDArray[np.float32], block: int) -> NDArray[np.float32]:
    """Return values in rows of ``block``, the last one filled with zeros."""
    if more := -len(values) % block:
        values = np.concatenate([values, np.zeros(more, np.float32)])
    return values.reshape(-1, block)
