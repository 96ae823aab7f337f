"""A moment as messages tell it to a person; bundles hold nanoseconds."""

import numpy as np


def moment_text(ts_ns: int) -> str:
    """Return a moment as ISO 8601, UTC, no finer than it is.

    Examples
    --------
    >>> moment_text(1_767_225_637_000_000_000), moment_text(1_767_225_600_000_000_000)
    ('2026-01-01T00:00:37Z', '2026-01-01')
    """
    return str(np.datetime_as_string(np.datetime64(ts_ns, "ns"), unit="auto", timezone="UTC"))
