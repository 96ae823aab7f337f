"""Read the values of knobs that are numbers, and bound new ones."""

import math

from torchloom_core.plugin import FleetView, KnobSpec


def numbers(knob: str, rows: list[int], view: FleetView) -> list[float]:
    """Return the knob's values on these workers, if it is a number."""
    spec = view.knob_specs.get(knob)
    if spec is None or spec.kind not in ("float", "int"):
        return []
    present = view.knob(knob)
    return [float(value) for row in rows if (value := present[row]) is not None]


def within(spec: KnobSpec, value: float) -> float | int:
    """Return the nearest value that the knob takes, to one decimal place."""
    low = -math.inf if spec.low is None else spec.low
    high = math.inf if spec.high is None else spec.high
    value = min(max(round(value, 1), low), high)
    return round(value) if spec.kind == "int" else value
