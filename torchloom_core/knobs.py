"""Check a knob's value against its specification."""

import math
from collections.abc import Iterable

from torchloom_core.errors import KnobError
from torchloom_core.messages import KnobSpec, KnobValue
from torchloom_core.naming import nearest


def check_value(spec: KnobSpec, value: KnobValue) -> KnobValue:
    """Return ``value`` in the knob's own type.

    An int is taken for a float knob; nothing else is converted.

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
                raise KnobError(f"knob {spec.name}: need true or false, was {value!r}")
            return value
        case "choice":
            if value not in spec.choices:
                raise KnobError(
                    f"knob {spec.name}: need one of {', '.join(spec.choices)}, was {value!r}"
                )
            return value
        case "int":
            if isinstance(value, bool) or not isinstance(value, int):
                raise KnobError(f"knob {spec.name}: need a whole number, was {value!r}")
            if not -(2**63) <= value < 2**63:
                bits = value.bit_length()
                raise KnobError(f"knob {spec.name}: need a number of 63 bits, was one of {bits}")
            number: int | float = value
        case "float":
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise KnobError(f"knob {spec.name}: need a number, was {value!r}")
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


def find_spec(name: str, specs: Iterable[KnobSpec]) -> KnobSpec:
    """Return the specification called ``name``.

    Raises
    ------
    KnobError
        If there is none; the message offers the nearest names.
    """
    known = {spec.name: spec for spec in specs}
    if name not in known:
        raise KnobError(f"no knob is called {name!r}{nearest(name, known)}")
    return known[name]
