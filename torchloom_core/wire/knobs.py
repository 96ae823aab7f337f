"""Check a knob's value against its specification."""

import math
import re
from collections.abc import Iterable

from torchloom_core.floor.errors import KnobError
from torchloom_core.floor.suggest import nearest
from torchloom_core.wire.limits import MAX_ORDER, NAME, KnobValue
from torchloom_core.wire.messages import KnobSpec

_FAR = {"float": 10.0, "int": 100.0}
_ROUNDING = 1.0 + 1e-9
_MOST_SHOWN = 200


def check_value(spec: KnobSpec, value: KnobValue) -> KnobValue:
    """Return ``value`` in the knob's own type.

    A float knob accepts an int; nothing else is converted.

    Raises
    ------
    KnobError
        If the type is wrong, or the value lies outside the range or the choices.

    Examples
    --------
    >>> check_value(KnobSpec(name="lr", kind="float", low=0.0, high=1.0), 1)
    1.0
    """
    match spec.kind:
        case "bool":
            if not isinstance(value, bool):
                raise KnobError(f"knob {spec.name}: need true or false, was {shown(value)}")
            return value
        case "choice":
            if value not in spec.choices:
                raise KnobError(
                    f"knob {spec.name}: need one of {', '.join(spec.choices)}, was {shown(value)}"
                )
            return value
        case "order":
            return _check_order(spec, value)
        case "int":
            if isinstance(value, bool) or not isinstance(value, int):
                raise KnobError(f"knob {spec.name}: need a whole number, was {shown(value)}")
            if not -(2**63) <= value < 2**63:
                bits = value.bit_length()
                raise KnobError(f"knob {spec.name}: need a number of at most 63 bits, was {bits}")
            number: int | float = value
        case "float":
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise KnobError(f"knob {spec.name}: need a number, was {shown(value)}")
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            if not math.isfinite(number):
                raise KnobError(f"knob {spec.name}: need a finite number, was {number}")
    if spec.low is not None and number < spec.low:
        raise KnobError(f"knob {spec.name}: need at least {spec.low:g}, was {number!r}")
    if spec.high is not None and number > spec.high:
        raise KnobError(f"knob {spec.name}: need at most {spec.high:g}, was {number!r}")
    return number


def _check_order(spec: KnobSpec, value: KnobValue) -> str:
    if not isinstance(value, str):
        raise KnobError(
            f"knob {spec.name}: need group names separated by commas, was {shown(value)}"
        )
    if len(value) > MAX_ORDER:
        raise KnobError(f"knob {spec.name}: need at most {MAX_ORDER} characters, were {len(value)}")
    names = value.split(",") if value else []
    wrong = next((name for name in names if not re.search(NAME, name)), None)
    if wrong is not None:
        raise KnobError(
            f"knob {spec.name}: need group names separated by commas, was {shown(wrong)}"
        )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise KnobError(f"knob {spec.name}: need each group once, was {twice} twice")
    return value


def shown(value: KnobValue) -> str:
    """Return a value as text for people; the middle of a long one is left out.

    Examples
    --------
    >>> shown(0.5), shown("bf16")
    ('0.5', "'bf16'")
    """
    text = repr(value)
    half = _MOST_SHOWN // 2
    return text if len(text) <= _MOST_SHOWN else f"{text[:half]}...{text[-half:]}"


def unusual(spec: KnobSpec, value: KnobValue, used: Iterable[KnobValue]) -> str:
    """Return why a value is probably a mistake, or an empty string.

    The range of a learning rate is wide, and few values in it train; an interval of steps that
    is far too long cannot be shortened before it has passed.

    Examples
    --------
    >>> unusual(KnobSpec(name="lr", kind="float"), 20.0, [0.01, 0.1])
    'knob lr: need a value within a factor of 10 of those in use (0.01 to 0.1), was 20.0'
    """
    sizes = [abs(own) for own in used if isinstance(own, int | float) and own]
    far = _FAR.get(spec.kind)
    if far is None or not isinstance(value, int | float) or not sizes:
        return ""
    low, high, size = min(sizes), max(sizes), abs(value) * _ROUNDING
    if low <= size * far and abs(value) <= high * far * _ROUNDING:
        return ""
    in_use = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    return (
        f"knob {spec.name}: need a value within a factor of {far:g} of those in use ({in_use}), "
        f"was {value!r}"
    )


def takes(spec: KnobSpec) -> tuple[object, ...]:
    """Return the parts of a specification that define its values and how they are applied."""
    return spec.kind, spec.fence, spec.low, spec.high, spec.choices, spec.unit


def agrees(knobs: Iterable[KnobSpec], spec: KnobSpec) -> bool:
    """Return whether ``knobs`` has no knob of this name, or one that takes the same values."""
    return all(takes(own) == takes(spec) for own in knobs if own.name == spec.name)


def find_spec(name: str, specs: Iterable[KnobSpec]) -> KnobSpec:
    """Return the specification called ``name``.

    Raises
    ------
    KnobError
        If there is none; the message has the nearest names.
    """
    by_name = {spec.name: spec for spec in specs}
    if name not in by_name:
        raise KnobError(f"no knob is called {name!r}{nearest(name, by_name)}")
    return by_name[name]
