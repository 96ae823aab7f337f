"""Choose trial values for knobs without a cost model: pieces and buckets."""

from collections.abc import Mapping

from torchloom_core.plugin import KnobSpec, KnobValue
from torchloom_policies.allreduce.knob_change import Settings

PIECES, BUCKET = "concurrent_allreduces", "bucket_bytes"
_LEAST_BUCKET = 1 << 20
_MOST_BUCKET = 1 << 28


class SettingTrials:
    """Hill climbing: double a number, or halve it, until neither measures better.

    Each value is tried once in each compression mode.
    """

    def __init__(self) -> None:
        self._tried: dict[tuple[str, str], set[int]] = {}

    def next_value(
        self,
        specs: Mapping[str, KnobSpec],
        settings: Settings,
        mode: str,
        largest_bytes: float,
    ) -> tuple[str, int] | None:
        """Return a knob and a value to try, None if all were tried."""
        for knob in (PIECES, BUCKET):
            present, spec = settings.get(knob), specs.get(knob)
            if spec is None or isinstance(present, bool) or not isinstance(present, int):
                continue
            tried = self._tried.setdefault((knob, mode), set())
            tried.add(present)
            for value in _next_to(knob, present, largest_bytes):
                if value not in tried and _takes(spec, value):
                    return knob, value
        return None

    def made(self, knob: str, value: KnobValue, mode: str) -> None:
        """Record that a value was tried."""
        if isinstance(value, int):
            self._tried.setdefault((knob, mode), set()).add(value)


def _next_to(knob: str, present: int, largest_bytes: float) -> tuple[int, ...]:
    if knob == PIECES:
        return (2 * present, present // 2)
    if present:
        whole = present >= largest_bytes  # a larger bucket changes nothing
        return (present // 2,) if whole else (present // 2, 2 * present)
    half = 1 << max(0, int(largest_bytes / 2).bit_length() - 1)
    return (min(max(half, _LEAST_BUCKET), _MOST_BUCKET),) if largest_bytes > _LEAST_BUCKET else ()


def _takes(spec: KnobSpec, value: int) -> bool:
    low = 1 if spec.low is None else max(1.0, spec.low)
    low = max(low, _LEAST_BUCKET) if spec.name == BUCKET else low
    return low <= value and (spec.high is None or value <= spec.high)
