"""States as JSON and tensors: the state dicts of schedulers, data loaders and random generators.

No pickle: what is neither a tensor, a number, a text nor a container of such is refused by name.
"""

import base64
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from torchloom_core.floor.errors import CheckpointError

_KIND, _OF = "!", "of"
_LARGEST = 2**63 - 1


def encode(state: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """Return a state as JSON values, and put its tensors into ``tensors`` under ``place. ...``.

    Raises
    ------
    CheckpointError
        If the state has a value of another type.
    """
    if state is None or isinstance(state, bool | str):
        return state
    if type(state) is int:
        return state if abs(state) <= _LARGEST else _tagged("int", str(state))
    if type(state) is float:
        return state if math.isfinite(state) else _tagged("float", repr(state))
    if isinstance(state, Tensor):
        tensors[place] = state
        return _tagged("tensor", place)
    if isinstance(state, Mapping):
        return _mapping(state, place, tensors)
    if isinstance(state, list | tuple | set | frozenset):
        items = [encode(item, f"{place}.{i}", tensors) for i, item in enumerate(state)]
        return items if isinstance(state, list) else _tagged(_container(state), items)
    if isinstance(state, bytes):
        return _tagged("bytes", base64.b64encode(state).decode())
    if isinstance(state, torch.dtype):
        return _tagged("dtype", str(state).removeprefix("torch."))
    if isinstance(state, torch.device):
        return _tagged("device", str(state))
    if (numpy := sys.modules.get("numpy")) and isinstance(state, numpy.ndarray | numpy.generic):
        array = numpy.asarray(state)
        if array.dtype.hasobject:
            raise CheckpointError(f"{place}: cannot be saved: a numpy array of objects")
        data = base64.b64encode(array.tobytes()).decode()
        kind = "numpy" if isinstance(state, numpy.ndarray) else "numpy_number"
        return _tagged(kind, [array.dtype.str, list(array.shape), data])
    raise CheckpointError(f"{place}: cannot be saved: {type(state).__qualname__}")


def _tagged(kind: str, value: Any) -> dict[str, Any]:
    return {_KIND: kind, _OF: value}


def _container(state: Any) -> str:
    return "tuple" if isinstance(state, tuple) else "set"


def _mapping(state: Mapping[Any, Any], place: str, tensors: dict[str, Tensor]) -> Any:
    is_plain = all(type(key) is str for key in state) and _KIND not in state
    if is_plain and not isinstance(state, Counter):
        return {key: encode(value, f"{place}.{key}", tensors) for key, value in state.items()}
    pairs = [
        [encode(key, place, tensors), encode(value, f"{place}.{key}", tensors)]
        for key, value in state.items()
    ]
    return _tagged("counter" if isinstance(state, Counter) else "dict", pairs)


def decode(state: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return what :func:`encode` was given.

    Raises
    ------
    CheckpointError
        If the JSON is not what it writes, or names a tensor that is not there.
    """
    if isinstance(state, list):
        return [decode(item, tensors) for item in state]
    if not isinstance(state, dict):
        return state
    if _KIND not in state:
        return {key: decode(value, tensors) for key, value in state.items()}
    kind, value = state[_KIND], state.get(_OF)
    if kind == "tensor":
        if not isinstance(value, str) or value not in tensors:
            raise CheckpointError(f"the tensor {value!r} is missing")
        return tensors[value]
    read = _READERS.get(kind) if isinstance(kind, str) else None
    if read is None:
        raise CheckpointError(f"need a known kind of value, was {kind!r}")
    return read(decode(value, tensors))


def _array(value: list[Any]) -> Any:
    numpy = import_module("numpy")
    dtype, shape, data = value
    return numpy.frombuffer(base64.b64decode(data), dtype=numpy.dtype(dtype)).reshape(shape).copy()


def dtype_named(name: str) -> torch.dtype:
    """Return the dtype of this name; CheckpointError if torch has none."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise CheckpointError(f"need a dtype of torch, was {name!r}")
    return found


_READERS: dict[str, Callable[[Any], Any]] = {
    "int": int,
    "float": float,
    "tuple": tuple,
    "set": set,
    "bytes": base64.b64decode,
    "dtype": dtype_named,
    "device": torch.device,
    "numpy": _array,
    "numpy_number": lambda value: _array(value)[()],
    "dict": dict,
    "counter": lambda pairs: Counter(dict(pairs)),
}
