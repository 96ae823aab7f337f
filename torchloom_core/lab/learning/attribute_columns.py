"""Numeric labels of each worker, for :mod:`torchloom_core.lab.learning.features`."""

from collections.abc import Mapping, Sequence

import numpy as np

from torchloom_core.interface.arrays import Floats
from torchloom_core.interface.view import FleetView


class AttributeColumns:
    """Labels that are numbers; columns are cached while the labels stay the same."""

    def __init__(self, attributes: Sequence[str]) -> None:
        self._attributes = tuple(attributes)
        self._labels: Sequence[Mapping[str, str | float]] = ()
        self._columns: Floats = np.zeros((0, len(attributes)))
        self.names = tuple(f"its {name}" for name in attributes)

    def compute(self, view: FleetView) -> Floats:
        """Return ``(workers, attributes)``, NaN for a missing label or text."""
        if not self._attributes:
            return np.zeros((len(view), 0))
        if view.labels is not self._labels:
            self._labels = view.labels
            cells = [[_number(row.get(name)) for name in self._attributes] for row in view.labels]
            self._columns = np.array(cells, dtype=float).reshape(len(view), len(self._attributes))
        return self._columns


def _number(label: str | float | None) -> float:
    return np.nan if label is None or isinstance(label, str) else float(label)
