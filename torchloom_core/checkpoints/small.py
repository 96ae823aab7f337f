"""Small encodings of a checkpoint's tensors, as differences to a full one or with fewer bits.

Weights are rounded in their difference to the full checkpoint, moments in what they are, second
moments in their fourth root, so that small ones do not become zero: whole numbers of at most a
byte, and a scale for each block. Everything else, and what cannot be rounded, is kept to the bit.
Check-N-Run (Eisenman et al., NSDI 2022) does so with weights.
"""

import enum
import struct
import zlib
from collections.abc import Container
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchloom_core.checkpoints.deflated import (
    Inflating,
    chunks,
    damaged,
    deflated_planes,
    read_planes,
)
from torchloom_core.checkpoints.float_bytes import (
    FLOAT_KINDS,
    from_upper_halves,
    in_blocks,
    put_floats,
    read_floats,
    upper_halves,
)
from torchloom_core.floor.errors import CheckpointError

VERSION = 1

_HEADER = struct.Struct("<BBBB")  # version, method, number of the type, log2 of a block
_BLOCK_BITS, _MOST_BLOCK_BITS = 10, 16
_TINY = np.float32(2.0**-126)
_MOMENTS = frozenset({"exp_avg", "momentum_buffer"})
_SECOND_MOMENTS = frozenset({"exp_avg_sq", "max_exp_avg_sq"})


class Role(enum.Enum):
    """What a tensor is for, which decides how it may be rounded."""

    WEIGHT = "weight"
    MOMENT = "moment"
    SECOND_MOMENT = "second_moment"
    EXACT = "exact"


class Method(enum.IntEnum):
    """How a tensor is encoded.

    ``SAME``: as in the base. ``EXACT``: its bytes, deflated. ``DIFFERENCE``: rounded, to be added
    to the base. ``LINEAR``: rounded. ``FOURTH_ROOT``: its fourth root, rounded.
    """

    SAME = 0
    EXACT = 1
    DIFFERENCE = 2
    LINEAR = 3
    FOURTH_ROOT = 4


class Encoded(NamedTuple):
    """A tensor as it is stored; ``data`` names the method too."""

    method: Method
    data: bytes


_METHODS = {
    Role.WEIGHT: Method.DIFFERENCE,
    Role.MOMENT: Method.LINEAR,
    Role.SECOND_MOMENT: Method.FOURTH_ROOT,
}
_LEVELS = {Method.DIFFERENCE: 127, Method.LINEAR: 31, Method.FOURTH_ROOT: 127}
"""The largest whole number of each, which the largest value of a block becomes.

A first moment is forgotten within some ten steps; experiments/small_checkpoints trains on.
"""


_NAMES = list(FLOAT_KINDS)
_NO_FLOAT = len(_NAMES)


def role_of(name: str, trained: Container[str]) -> Role:
    """Return the role of a tensor.

    Parameters
    ----------
    name : str
        As the checkpoint names it, such as ``optim.state.layers.0.weight.exp_avg``.
    trained : container of str
        The names of the weights that an optimizer changes, such as ``model.layers.0.weight``.
    """
    if name in trained:
        return Role.WEIGHT
    part, _, rest = name.partition(".")
    if not (part.startswith("optim") and rest.startswith("state.")):
        return Role.EXACT
    key = rest.rpartition(".")[2]
    if key in _MOMENTS:
        return Role.MOMENT
    return Role.SECOND_MOMENT if key in _SECOND_MOMENTS else Role.EXACT


def encode(data: memoryview, dtype: str, role: Role, base: memoryview | None) -> Encoded:
    """Return a tensor's small encoding, the same for the same input.

    A rounded number is at most half a scale from what it was, where a scale is the largest value
    of its 1,024 neighbours over 127, or 31 for moments; no positive second moment becomes 0.
    A tensor that cannot be rounded so is kept to the bit: with an infinity or a NaN, of another
    type than ``float32``, ``float16`` and ``bfloat16``, or a weight without a base.

    Parameters
    ----------
    data : memoryview
        The bytes of the tensor.
    dtype : str
        As torch names it, such as ``float32``.
    base : memoryview or None
        The bytes of the same tensor in the full checkpoint.
    """
    if base is not None and len(base) == len(data) and np.array_equal(_bytes(base), _bytes(data)):
        return _encoded(Method.SAME, dtype, b"")
    method = _METHODS.get(role)
    if method is not None and dtype in FLOAT_KINDS:
        fits = base is not None and len(base) == len(data)
        if method is not Method.DIFFERENCE or fits:
            body = _rounded(data, dtype, method, base)
            if body is not None:
                return _encoded(method, dtype, body)
    return _encoded(Method.EXACT, dtype, deflated_planes(data, _width(dtype)))


def needs_base(encoded: bytes | memoryview) -> bool:
    """Return whether :func:`decode` needs the base; CheckpointError if the header is damaged."""
    return _header(encoded)[0] in (Method.SAME, Method.DIFFERENCE)


def decode(encoded: bytes | memoryview, base: memoryview | None, into: memoryview) -> None:
    """Decode a tensor into a view of its length; the base may be that view.

    Raises CheckpointError if the encoding is damaged, or of a later version, or lacks its base;
    the view may be overwritten then.
    """
    method, number, block = _header(encoded)
    body = memoryview(encoded)[_HEADER.size :]
    if method in (Method.SAME, Method.DIFFERENCE) and (base is None or len(base) != len(into)):
        raise CheckpointError("a small tensor lacks its base")
    if method is Method.SAME and base is not None:
        _bytes(into)[:] = _bytes(base)
    elif method is Method.EXACT:
        read_planes(
            body, FLOAT_KINDS[_NAMES[number]].stored.itemsize if number < _NO_FLOAT else 1, into
        )
    elif number < _NO_FLOAT:
        _read_rounded(body, _NAMES[number], method, block, base, into)
    else:
        raise damaged("whole numbers are not rounded")


def _rounded(data: memoryview, dtype: str, method: Method, base: memoryview | None) -> bytes | None:
    """Return scales and numbers; None if they cannot be rounded."""
    scales: list[bytes] = []
    numbers: list[bytes] = []
    deflate = zlib.compressobj(1, zlib.DEFLATED, 15, 9, zlib.Z_RLE)
    levels = np.float32(_LEVELS[method])
    for begin, end in chunks(len(data) // FLOAT_KINDS[dtype].stored.itemsize):
        with np.errstate(over="ignore", invalid="ignore"):
            values = read_floats(data, dtype, begin, end)
            if method is Method.DIFFERENCE and base is not None:
                values = values - read_floats(base, dtype, begin, end)
            elif method is Method.FOURTH_ROOT:
                if np.signbit(values).any():
                    return None
                values = np.sqrt(np.sqrt(values))
            blocks = in_blocks(values, 1 << _BLOCK_BITS)
            largest = np.abs(blocks).max(axis=1)
        if not np.isfinite(largest).all():
            return None
        scale = upper_halves(largest / levels)
        scales.append(scale.tobytes())
        whole = np.rint(blocks / np.maximum(from_upper_halves(scale), _TINY)[:, None])
        if method is Method.FOURTH_ROOT:
            whole = np.where(blocks > 0, np.maximum(whole, 1), whole).astype(np.uint8)
        else:
            whole = whole.astype(np.int8)
        numbers.append(deflate.compress(whole.reshape(-1)[: end - begin].tobytes()))
    return b"".join([*scales, *numbers, deflate.flush()])


def _read_rounded(
    body: memoryview,
    dtype: str,
    method: Method,
    block: int,
    base: memoryview | None,
    into: memoryview,
) -> None:
    kind = FLOAT_KINDS[dtype]
    count, odd = divmod(len(into), kind.stored.itemsize)
    scale_bytes = 2 * -(-count // block)
    if odd or len(body) < scale_bytes:
        raise damaged("its length is another")
    scales = from_upper_halves(np.frombuffer(body[:scale_bytes], "<u2"))
    if not np.isfinite(scales).all() or (scales < 0).any():
        raise damaged("a scale is not finite")
    inflating = Inflating(body[scale_bytes:])
    for begin, end in chunks(count):
        data = inflating.take(end - begin)
        whole = np.frombuffer(data, np.uint8 if method is Method.FOURTH_ROOT else np.int8)
        scale = np.maximum(scales[begin // block : -(-end // block)], _TINY)
        values = in_blocks(whole.astype(np.float32), block)
        with np.errstate(over="ignore"):
            values = (values * scale[:, None]).reshape(-1)[: end - begin]
            if method is Method.FOURTH_ROOT:
                positive = whole > 0
                values = np.square(np.square(values))
                values[positive] = np.maximum(values[positive], kind.least)
            elif method is Method.DIFFERENCE and base is not None:
                values = read_floats(base, dtype, begin, end) + values
            put_floats(np.clip(values, -kind.most, kind.most), dtype, into, begin, end)
    inflating.end()


def _encoded(method: Method, dtype: str, body: bytes) -> Encoded:
    number = _NAMES.index(dtype) if dtype in FLOAT_KINDS else _NO_FLOAT
    return Encoded(method, _HEADER.pack(VERSION, method, number, _BLOCK_BITS) + body)


def _header(encoded: bytes | memoryview) -> tuple[Method, int, int]:
    """Return the method, the number of the type, and the numbers of a block."""
    if len(encoded) < _HEADER.size:
        raise damaged("it is cut off")
    version, method, number, bits = _HEADER.unpack_from(encoded)
    if version != VERSION:
        raise CheckpointError(f"a small tensor: need version <= {VERSION}, was {version}")
    if method > max(Method) or number > _NO_FLOAT or bits > _MOST_BLOCK_BITS:
        raise damaged("its header is not known")
    return Method(method), number, 1 << bits


def _width(dtype: str) -> int:
    return int(FLOAT_KINDS[dtype].stored.itemsize) if dtype in FLOAT_KINDS else 1


def _bytes(data: memoryview) -> NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)
