"""Let the C library return the memory of large arrays to the system as soon as they are freed."""

import ctypes
from contextlib import suppress

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGE_BYTES = 1 << 20
_KEPT_BYTES = 8 << 20


def return_large_blocks() -> None:
    """Map each large block on its own; only for a whole process, and only with glibc.

    By default glibc raises that size with every large block that is freed, up to 32 MB: the
    temporary arrays of a large fleet then leave holes in the heaps, which grow to twice their use.
    """
    with suppress(AttributeError, OSError, TypeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
