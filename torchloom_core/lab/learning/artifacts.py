"""Convert parts of fitted models to bytes and back, without pickle: JSON, estimators, arrays."""

import io
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from typing import Any, TypeVar

import msgspec
import numpy as np

from torchloom_core.floor.errors import ModelError
from torchloom_core.interface.arrays import Floats

_T = TypeVar("_T")

_SCHEMA = "schema.json"
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


def part_of(parts: Mapping[str, bytes], name: str) -> bytes:
    """Return one part of a fitted model; ModelError if there is none of that name.

    Examples
    --------
    >>> from torchloom_core.lab.learning import part_of
    >>> part_of({"rate.json": b"0.25"}, "rate.json")
    b'0.25'
    """
    if name not in parts:
        raise ModelError(f"{name}: need this part of a fitted model, was none")
    return parts[name]


def json_part(parts: Mapping[str, bytes], name: str, cls: type[_T]) -> _T:
    """Decode a part of JSON as a struct; ModelError if it is missing or invalid.

    Examples
    --------
    >>> from torchloom_core.lab.learning import json_part
    >>> json_part({"rate.json": b"0.25"}, "rate.json", float)
    0.25
    """
    try:
        return msgspec.json.decode(part_of(parts, name), type=cls)
    except msgspec.MsgspecError as error:
        raise ModelError(f"{name}: need {cls.__name__} as JSON: {error}") from error


def estimator_bytes(estimator: Any) -> bytes:
    """Serialise a scikit-learn estimator with skops, reproducibly.

    skops names the parts of an estimator by memory address, and its archive has a time stamp: here
    parts are numbered, and the time stamp is constant.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from torchloom_core.lab.learning import estimator_bytes
    >>> estimator = LogisticRegression().fit([[0.0], [1.0]], [False, True])
    >>> estimator_bytes(estimator) == estimator_bytes(estimator)
    True
    """
    skops = _skops()
    numbers: dict[bytes, bytes] = {}

    def number(match: "re.Match[bytes]") -> bytes:
        return numbers.setdefault(match.group(), b"%d" % len(numbers))

    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(skops.dumps(estimator))) as source:
        ids = rb'(?<="__id__": )\d+|(?<=")\d+(?=\.np[yz]")'
        schema = re.sub(ids, number, source.read(_SCHEMA))
        members = {_SCHEMA: schema}
        for name in source.namelist():
            if name != _SCHEMA:
                stem, dot, suffix = name.partition(".")
                renamed = numbers[stem.encode()].decode() + dot + suffix
                members[renamed] = source.read(name)
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(members):
            archive.writestr(zipfile.ZipInfo(name, _LONG_AGO), members[name])
    return made.getvalue()


def estimator_part(parts: Mapping[str, bytes], name: str, trusted: Sequence[str]) -> Any:
    """Return the estimator that :func:`estimator_bytes` serialised as the part ``name``.

    ``trusted`` are the full names of allowed types, besides those that skops trusts by default.
    ModelError if the part is missing or damaged, or has another type.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from torchloom_core.lab.learning import estimator_bytes, estimator_part
    >>> estimator = LogisticRegression().fit([[0.0], [1.0]], [False, True])
    >>> parts = {"regression.skops": estimator_bytes(estimator)}
    >>> estimator_part(parts, "regression.skops", trusted=()).predict([[0.9]])
    array([ True])
    """
    skops = _skops()
    try:
        return skops.loads(part_of(parts, name), trusted=list(trusted))
    except skops.exceptions.UntrustedTypesFoundException as error:
        found = str(error).partition("\n")[0]
        raise ModelError(f"{name}: need trusted types only: {found}") from error
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise ModelError(f"{name}: need an estimator serialised by skops: {error}") from error


def _skops() -> Any:
    """Return ``skops.io``, imported as if torch were not installed.

    skops lists all estimators of scikit-learn, which imports all its packages, and one of them
    imports torch: that is slow and adds nothing to the list.
    """
    with _not_installed("torch"):
        import skops.io
        import skops.io.exceptions
    return skops.io


@contextmanager
def _not_installed(module: str) -> Iterator[None]:
    """Hide a module from imports, unless it is imported already."""

    class Nowhere(MetaPathFinder):
        def find_spec(self, name: str, *_: Any) -> None:
            if name == module:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    nowhere = Nowhere()
    sys.meta_path.insert(0, nowhere)
    try:
        yield
    finally:
        sys.meta_path.remove(nowhere)


def check_forest(forest: Any, columns: int, name: str) -> None:
    """Raise ModelError for trees with indices out of range, which scikit-learn does not check.

    That is a child that is no later node of its tree, or a split on none of the ``columns``
    features. ``forest`` is scikit-learn's ensemble as deserialised, ``name`` the part.

    Examples
    --------
    >>> from sklearn.ensemble import ExtraTreesClassifier
    >>> from torchloom_core.lab.learning import check_forest
    >>> forest = ExtraTreesClassifier(3, random_state=0).fit([[0.0, 1.0], [1.0, 0.0]], [0, 1])
    >>> check_forest(forest, columns=2, name="forest.skops")
    >>> check_forest(forest, columns=0, name="forest.skops")
    Traceback (most recent call last):
    torchloom_core.floor.errors.ModelError: forest.skops: need node and feature indices in range
    """
    for estimator in forest.estimators_:
        tree = estimator.tree_
        inner = np.flatnonzero(tree.children_left != -1)
        children = np.concatenate([tree.children_left[inner], tree.children_right[inner]])
        inside = (children > np.tile(inner, 2)) & (children < tree.node_count)
        feature = tree.feature[inner]
        in_range = (feature >= 0) & (feature < columns)
        if not (tree.node_count and inside.all() and in_range.all()):
            raise ModelError(f"{name}: need node and feature indices in range")


def arrays_bytes(arrays: Mapping[str, Floats]) -> bytes:
    """Serialise arrays with safetensors, reproducibly.

    Examples
    --------
    >>> import numpy as np
    >>> from torchloom_core.lab.learning import arrays_bytes, arrays_part
    >>> parts = {"scale.safetensors": arrays_bytes({"middle": np.array([60.0, 2.5])})}
    >>> arrays_part(parts, "scale.safetensors", {"middle": (2,)})
    [array([60. ,  2.5])]
    """
    from safetensors.numpy import save

    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    data: bytes = save(contiguous)  # it would save other arrays in the wrong order
    return data


def arrays_part(
    parts: Mapping[str, bytes], name: str, shapes: Mapping[str, tuple[int | None, ...]]
) -> list[Floats]:
    """Return the arrays that :func:`arrays_bytes` serialised as the part ``name``.

    ``shapes`` are the names and shapes of the arrays to return, in order; None stands for any
    length. ModelError if the part is missing or damaged, or lacks an array of that shape.

    Examples
    --------
    >>> import numpy as np
    >>> from torchloom_core.lab.learning import arrays_bytes, arrays_part
    >>> parts = {"w.safetensors": arrays_bytes({"bias": np.zeros(2), "weight": np.ones((2, 1))})}
    >>> weight, bias = arrays_part(parts, "w.safetensors", {"weight": (None, 1), "bias": (2,)})
    >>> weight.shape, bias.shape
    ((2, 1), (2,))
    >>> arrays_part(parts, "w.safetensors", {"bias": (3,)})
    Traceback (most recent call last):
    torchloom_core.floor.errors.ModelError: w.safetensors: need bias of shape 3, was (2,)
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = load(part_of(parts, name))
    except SafetensorError as error:
        raise ModelError(f"{name}: need arrays serialised by safetensors: {error}") from error
    for array, shape in shapes.items():
        if array not in arrays:
            raise ModelError(f"{name}: need an array {array}, was none")
        found = arrays[array].shape
        if len(found) != len(shape) or any(
            wanted not in (None, length) for wanted, length in zip(shape, found, strict=True)
        ):
            wanted = " x ".join("any" if length is None else str(length) for length in shape)
            raise ModelError(f"{name}: need {array} of shape {wanted}, was {found}")
    return [arrays[array] for array in shapes]
