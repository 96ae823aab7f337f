"""Arrays of telemetry: one row per worker and, in a window, one column per tick."""

from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

AnyArray = TypeVar("AnyArray", bound=np.ndarray[Any, Any])
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def frozen(array: AnyArray) -> AnyArray:
    """Return a view of the data that cannot be made writeable, and neither can its base."""
    return cast(AnyArray, np.asarray(array.data.toreadonly()))


def samples_in(seconds: float, tick_s: float) -> int:
    """Return how many columns a window of ``seconds`` has; at least one."""
    return max(1, round(seconds / tick_s))


def grow(array: AnyArray, workers: int, fill: float = 0) -> AnyArray:
    """Return ``array`` lengthened along its first axis to ``workers`` rows of ``fill``.

    Examples
    --------
    >>> import numpy as np
    >>> from torchloom_core.plugin import grow
    >>> grow(np.array([3, 4]), 3)
    array([3, 4, 0])
    """
    more = workers - len(array)
    if more == 0:
        return array
    padding = [(0, more)] + [(0, 0)] * (array.ndim - 1)
    return cast(AnyArray, np.pad(array, padding, constant_values=fill))
