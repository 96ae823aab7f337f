"""How many examples a test tries that wants another number than most do."""

from hypothesis import settings

_IN_FULL = 100


def examples(in_full: int) -> int:
    """Return as large a share of ``in_full`` as the profile takes of the usual hundred."""
    return max(1, in_full * settings.default.max_examples // _IN_FULL)
