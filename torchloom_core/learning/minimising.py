"""Find where a smooth function is lowest; a calibration and a regression ask."""

from collections.abc import Callable, Sequence
from typing import Any

from torchloom_core.plugin.arrays import Floats


def minimum(
    loss: Callable[[Floats], tuple[float, Floats]],
    start: Floats,
    *,
    bounds: Sequence[tuple[float | None, float | None]] | None = None,
    **options: Any,
) -> Any:
    """Return what scipy's L-BFGS-B finds, ``x`` and ``fun``, on one thread.

    The steps are worked out in matrices of a few numbers, on which the threads of scipy's library
    wait for one another many times as long as they work.

    Parameters
    ----------
    loss : callable
        Of ``(parameters,)``: its value, and its gradient ``(parameters,)``.
    start : (parameters,) float64
        Where to begin.
    bounds : sequence of (float or None, float or None), optional
        Lowest and highest of each parameter.
    options
        Of the method.

    Examples
    --------
    >>> import numpy as np
    >>> from torchloom_core.learning import minimum
    >>> found = minimum(lambda at: (((at - 3.0) ** 2).sum(), 2.0 * (at - 3.0)), np.zeros(2))
    >>> found.x.round(6)
    array([3., 3.])
    """
    from scipy.optimize import minimize
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1):  # of what is loaded, and that now is
        return minimize(loss, start, jac=True, bounds=bounds, method="L-BFGS-B", options=options)
