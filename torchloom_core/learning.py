"""What predictors that learn share: rows kept from passing examples, and estimators as bytes."""

import io
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchloom_core.clock import SECOND_NS
from torchloom_core.errors import ModelError, PluginError
from torchloom_core.plugin.arrays import Floats, Ints

_T = TypeVar("_T")

_SCHEMA = "schema.json"
_ALWAYS = -1.0
"""A draw that is below any bar."""

_LONG_AGO = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, eq=False)
class Rows:
    """What was kept of the examples: one row a judged worker and moment, in time order.

    Attributes
    ----------
    features : (rows, features) float64
        NaN where unknown.
    failed : (rows,) bool
        Whether the worker failed within the horizon.
    at_ns : (rows,) int64
        Time of the example, ns since the epoch.
    share : float
        How many of the rows that did not fail were kept; all that failed were.
    """

    features: Floats
    failed: NDArray[np.bool_]
    at_ns: Ints
    share: float

    def split(self, later: float, embargo_s: float) -> tuple["Rows", "Rows"]:
        """Return the rows before and in the last ``later`` share of the time.

        Between the two lie at least ``embargo_s``, so that no outcome of the first is decided
        in the second.
        """
        if not len(self.at_ns):
            return self, self
        start_ns, end_ns = int(self.at_ns[0]), int(self.at_ns[-1])
        cut_ns = end_ns - round(later * (end_ns - start_ns))
        return (
            self._where(self.at_ns < cut_ns - round(embargo_s * SECOND_NS)),
            self._where(self.at_ns >= cut_ns),
        )

    @property
    def tell_apart(self) -> bool:
        """Whether some failed and some did not."""
        return bool(self.failed.any() and not self.failed.all())

    def _where(self, wanted: NDArray[np.bool_]) -> "Rows":
        return Rows(
            self.features[wanted], self.failed[wanted], self.at_ns[wanted], share=self.share
        )


class RowSample:
    """Keeps all rows of workers that failed, and a fair sample of the others, as they pass.

    Each of the others draws a number; those with the smallest stay (bottom-k sampling, Cohen
    and Kaplan, "Summarizing data using bottom-k sketches", PODC 2007), so that each has the
    same chance however many come, and memory is bounded.
    """

    def __init__(self, max_healthy: int, seed: int) -> None:
        self._max_healthy = max_healthy
        self._random = np.random.default_rng(seed)
        self._bar = 1.0
        self._healthy_seen = 0
        self._parts: list[tuple[Floats, Floats, NDArray[np.bool_], Ints]] = []
        self._rows_since_thinned = 0

    def add(self, at_ns: int, features: Floats, outcome: Floats) -> None:
        """Take an example's ``(workers, features)``; rows whose outcome is NaN are left out."""
        judged = np.flatnonzero((outcome == 0.0) | (outcome == 1.0))
        failed = outcome[judged] == 1.0
        draws = self._random.random(len(judged))
        draws[failed] = _ALWAYS
        self._healthy_seen += int(np.count_nonzero(~failed))
        below = draws < self._bar
        kept = judged[below]
        stamps: Ints = np.full(len(kept), at_ns, dtype=np.int64)
        self._parts.append((draws[below], features[kept], failed[below], stamps))
        self._rows_since_thinned += len(kept)
        if self._rows_since_thinned > self._max_healthy:
            self._thin()

    def _thin(self) -> None:
        """Lower the bar so that at most ``max_healthy`` rows that did not fail are below it."""
        if not self._parts:
            return
        draws, features, failed, at_ns = map(np.concatenate, zip(*self._parts, strict=True))
        healthy = np.sort(draws[~failed])
        if len(healthy) > self._max_healthy:
            self._bar = float(healthy[self._max_healthy])
        kept = draws < self._bar
        self._parts = [(draws[kept], features[kept], failed[kept], at_ns[kept])]
        self._rows_since_thinned = 0

    def rows(self, predictor: str) -> Rows:
        """Return what was kept.

        Raises
        ------
        PluginError
            If no row failed, or all did.
        """
        self._thin()
        failures = int(self._parts[0][2].sum()) if self._parts else 0
        if not failures:
            raise PluginError(
                f"{predictor}: need a failure to learn from, was none in "
                f"{self._healthy_seen} moments of workers"
            )
        if not self._healthy_seen:
            raise PluginError(
                f"{predictor}: need a worker that did not fail to learn from, was none beside "
                f"{failures} that did"
            )
        _, features, failed, at_ns = self._parts[0]
        kept = len(failed) - failures
        return Rows(features, failed, at_ns, share=kept / self._healthy_seen)

    def healthy(self, predictor: str) -> Floats:
        """Return ``(rows, features)`` of those that did not fail, in time order.

        Raises
        ------
        PluginError
            If there is none.
        """
        self._thin()
        if not self._healthy_seen:
            raise PluginError(
                f"{predictor}: need a worker that did not fail to learn from, was none"
            )
        _, features, failed, _ = self._parts[0]
        return features[~failed]


def part_of(parts: Mapping[str, bytes], name: str) -> bytes:
    """Return one part of a fitted model.

    Raises
    ------
    ModelError
        If there is none of that name.
    """
    if name not in parts:
        raise ModelError(f"{name}: need this part of a fitted model, was not there")
    return parts[name]


def json_part(parts: Mapping[str, bytes], name: str, cls: type[_T]) -> _T:
    """Return the struct that a part holds as JSON.

    Raises
    ------
    ModelError
        If there is none of that name, or it holds something else.
    """
    try:
        return msgspec.json.decode(part_of(parts, name), type=cls)
    except msgspec.MsgspecError as error:
        raise ModelError(f"{name}: need {cls.__name__} as JSON, was not: {error}") from error


def estimator_bytes(estimator: Any) -> bytes:
    """Return a scikit-learn estimator as skops keeps it, the same bytes for the same estimator.

    skops names the parts of an estimator by their place in memory, and the archive bears the
    time: parts are numbered as they appear instead, and the time is that of no clock.
    """
    from skops.io import dumps

    numbers: dict[bytes, bytes] = {}

    def number(match: "re.Match[bytes]") -> bytes:
        return numbers.setdefault(match.group(), b"%d" % len(numbers))

    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(dumps(estimator))) as source:
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
    """Return the estimator that :func:`estimator_bytes` kept under ``name``.

    Parameters
    ----------
    trusted : sequence of str
        Full names of the types it may hold beside those that skops trusts anyway.

    Raises
    ------
    ModelError
        If there is none of that name, it is damaged, or it holds another type.
    """
    from skops.io import loads
    from skops.io.exceptions import UntrustedTypesFoundException

    try:
        return loads(part_of(parts, name), trusted=list(trusted))
    except UntrustedTypesFoundException as error:
        found = str(error).partition("\n")[0]
        raise ModelError(f"{name}: need types that are trusted, was not: {found}") from error
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise ModelError(
            f"{name}: need an estimator as skops keeps it, was not: {error}"
        ) from error


def check_forest(forest: Any, columns: int, name: str) -> None:
    """Raise ModelError for trees that point outside themselves: they are followed blindly."""
    for estimator in forest.estimators_:
        tree = estimator.tree_
        inner = np.flatnonzero(tree.children_left != -1)
        children = np.concatenate([tree.children_left[inner], tree.children_right[inner]])
        inside = (children > np.tile(inner, 2)) & (children < tree.node_count)
        if not (inside.all() and (tree.feature[inner] < columns).all()):
            raise ModelError(f"{name}: need trees whose nodes are in them, was not")


def arrays_bytes(arrays: Mapping[str, Floats]) -> bytes:
    """Return arrays as safetensors keeps them, the same bytes for the same arrays."""
    from safetensors.numpy import save

    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    data: bytes = save(contiguous)  # what is not contiguous it would save in another order
    return data


def arrays_part(
    parts: Mapping[str, bytes], name: str, shapes: Mapping[str, tuple[int | None, ...]]
) -> list[Floats]:
    """Return the arrays that :func:`arrays_bytes` kept under ``name``.

    Parameters
    ----------
    shapes : mapping of str to tuple
        The arrays that are wanted and, in the order they are returned in, their shapes; None
        where any length will do.

    Raises
    ------
    ModelError
        If there is no part of that name, it is damaged, or lacks an array of such a shape.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = load(part_of(parts, name))
    except SafetensorError as error:
        raise ModelError(f"{name}: need arrays as safetensors, was not: {error}") from error
    for array, shape in shapes.items():
        if array not in arrays:
            raise ModelError(f"{name}: need an array {array}, was not there")
        found = arrays[array].shape
        if len(found) != len(shape) or any(
            wanted not in (None, length) for wanted, length in zip(shape, found, strict=True)
        ):
            wanted = " x ".join("any" if length is None else str(length) for length in shape)
            raise ModelError(f"{name}: need {array} of shape {wanted}, was {found}")
    return [arrays[array] for array in shapes]
