"""Minimise a smooth function, for calibrations and regressions."""

from collections.abc import Callable, Sequence
from typing import Any

from torchloom_core.interface.arrays import Floats


def minimum(
    loss: Callable[[Floats], tuple[float, Floats]],
    start: Floats,
    *,
    bounds: Sequence[tuple[float | None, float | None]] | None = None,
    **options: Any,
) -> Any:
    """Return ``x`` and ``fun`` of scipy's L-BFGS-B, on one thread.

    Its matrices are so small that BLAS threads would wait for one another most of the time.

    Parameters
    ----------
    loss : callable
        Returns its value and its gradient ``(parameters,)`` at ``(parameters,)``.
    start : (parameters,) float64
        The first guess.
    bounds : sequence of (float or None, float or None), optional
        Lowest and highest of each parameter.
    options
        Options of the method.

    Examples
    --------
    >>> import numpy as np
    >>> from torchloom_core.lab.learning import minimum
    >>> found = minimum(lambda at: (((at - 3.0) ** 2).sum(), 2.0 * (at - 3.0)), np.zeros(2))
    >>> found.x.round(6)
    array([3., 3.])
    """
    from scipy.optimize import minimize
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1):  # limits only libraries that are loaded by now
        return minimize(loss, start, jac=True, bounds=bounds, method="L-BFGS-B", options=options)
