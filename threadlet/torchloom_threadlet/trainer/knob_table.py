"""The knobs that a script has registered, and how they are set, all together or set back.

A worker's :class:`~torchloom_threadlet.trainer.actuators.Actuators` are one, and a
:class:`~torchloom_threadlet.preview.Preview` has one of its own.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec

from torchloom_core.errors import KnobError
from torchloom_core.wire.knobs import check_value, find_spec, shown
from torchloom_core.wire.limits import MAX_KNOBS, MAX_LONG_TEXT, MAX_SHORT_TEXT, MAX_TEXT
from torchloom_core.wire.messages import KnobSpec, KnobValue
from torchloom_threadlet.cleaning import knob_value, text

KnobKind = Literal["float", "int", "bool", "choice", "order"]
Fence = Literal["worker", "run"]


class Knob(msgspec.Struct, frozen=True):
    """A knob's specification and the user's functions behind it.

    Attributes
    ----------
    check : callable, optional
        Called with the values that all knobs would have; raises where they do not go together.
    """

    spec: KnobSpec
    get: Callable[[], KnobValue]
    set: Callable[[Any], object]
    check: Callable[[Mapping[str, KnobValue]], object] | None = None


def knob_of(
    name: str,
    get: Callable[[], Any],
    set: Callable[[Any], object],
    *,
    kind: KnobKind = "float",
    low: float | None = None,
    high: float | None = None,
    choices: Iterable[str] = (),
    fence: Fence = "worker",
    check: Callable[[Mapping[str, Any]], object] | None = None,
    used_up: bool = False,
    unit: str = "",
    doc: str = "",
) -> Knob:
    """Return a knob of what a script says of it; see ``Loom.knob``."""
    spec = KnobSpec(
        name=name,
        kind=kind,
        fence=fence,
        low=_bound(low),
        high=_bound(high),
        choices=tuple(text(choice, MAX_LONG_TEXT) for choice in choices),
        used_up=used_up,
        unit=text(unit, MAX_SHORT_TEXT),
        doc=text(doc, MAX_TEXT),
    )
    return Knob(spec, get, set, check)


class KnobTable:
    """The knobs by their names, with what they were when last registered or set."""

    def __init__(self) -> None:
        self._knobs: dict[str, Knob] = {}
        self._values: dict[str, KnobValue] = {}

    @property
    def specs(self) -> tuple[KnobSpec, ...]:
        """The specifications of the knobs, in the order they were registered."""
        return tuple(knob.spec for knob in list(self._knobs.values()))

    @property
    def values(self) -> dict[str, KnobValue]:
        """The knobs' values, as they were when last registered or set."""
        return dict(self._values)

    def add_knob(self, knob: Knob) -> None:
        """Register a knob; one of the same name takes the place of the former.

        Raises
        ------
        KnobError
            If it could not be told to a Weaver.
        """
        try:
            msgspec.convert(msgspec.to_builtins(knob.spec), KnobSpec)
        except (msgspec.ValidationError, TypeError) as error:
            raise KnobError(str(error)) from None
        if len({*self._knobs, knob.spec.name}) > MAX_KNOBS:
            raise KnobError(f"need at most {MAX_KNOBS} knobs, was one more")
        self._read(knob)
        if knob.spec.fence == "run" and knob.spec.name in self._values:
            check_value(knob.spec, self._values[knob.spec.name])
        self._knobs[knob.spec.name] = knob

    def set_knob(self, name: str, value: KnobValue) -> None:
        """Call the user's function and read back what it made of the value."""
        knob = self._knobs[name]
        knob.set(check_value(knob.spec, value))
        self._read(knob)
        if knob.spec.fence == "run" and name in self._values:
            check_value(knob.spec, self._values[name])  # else nobody could take it over

    def set_knobs(self, values: Mapping[str, KnobValue]) -> dict[str, KnobValue]:
        """Set several knobs, and return what they were; where one fails, set back all of them.

        They are set in the order in which they were registered, however they were named: first
        the optimizer, then its rate.

        Raises
        ------
        SystemExit
            If one cannot even be set back: this rank must not go on with values of its own.
        """
        before: dict[str, KnobValue] = {}
        try:
            for name in [name for name in self._knobs if name in values]:
                self._look_at([name])  # it may just have moved with another, as a rate does
                if name in self._values:
                    before[name] = self._values[name]
                self.set_knob(name, values[name])
        except Exception:
            self.set_back(before)
            raise
        return before

    def set_back(self, before: Mapping[str, KnobValue]) -> None:
        """Set knobs back to what they were, the last one first: each as it was when it was set.

        Raises
        ------
        SystemExit
            If one cannot be set back: this rank must not go on with values of its own.
        """
        self.set_like_others(dict(reversed(list(before.items()))))

    def set_like_others(self, values: Mapping[str, KnobValue]) -> None:
        """Set knobs to what they are on the other ranks, or end with one line.

        Raises
        ------
        SystemExit
            If one cannot be set: this rank must not go on with values of its own.
        """
        for name, value in values.items():
            try:
                spec = find_spec(name, self.specs)
                knob = self._knobs[name]
                with contextlib.suppress(KnobError):  # out of range or not, it is what they have
                    value = check_value(spec, value)
                knob.set(value)
            except Exception as error:
                raise SystemExit(
                    f"torchloom: knob {name} cannot be set to {shown(value)}, as it is on the "
                    f"other ranks, so this one must not go on: {text(error, MAX_TEXT)}"
                ) from error
            try:
                self._read(knob)
                check_value(knob.spec, self._values[name])
            except Exception:  # noqa: BLE001 - the user's function: set it is, as the others have it
                self._values[name] = value

    def check(self, values: Mapping[str, KnobValue]) -> None:
        """Ask the user's functions whether the knobs can take these values, all together.

        Raises
        ------
        KnobError
            If one is of no run-fenced knob, or cannot be taken.
        """
        for name, value in values.items():
            spec = find_spec(name, self.specs)
            check_value(spec, value)
            if spec.fence != "run":
                raise KnobError(f"knob {name} is worker-fenced: it is set alone")
            if name not in self._values:
                raise KnobError(f"knob {name} has no value here now, to which it could be set back")
        for name in values:
            check = self._knobs[name].check
            if check is not None:
                try:
                    check({**self._values, **values})
                except BaseException as error:  # noqa: BLE001 - the user's, in the link's thread
                    why = text(error, MAX_TEXT) or type(error).__name__
                    raise KnobError(f"knob {name}: {why}") from None

    def fenced_values(self) -> dict[str, KnobValue]:
        """Return what the run-fenced knobs are now, all of which a joiner must have."""
        names = [name for name, knob in self._knobs.items() if knob.spec.fence == "run"]
        self._look_at(names)
        return {name: self._values[name] for name in names if name in self._values}

    def knobs_refusal(self, values: Mapping[str, KnobValue]) -> str | None:
        """Return why run-fenced knobs cannot take these values, or None if they can."""
        try:
            self.check(values)
        except KnobError as error:
            return str(error)
        return None

    def _look_at(self, names: Iterable[str]) -> None:
        for name in names:
            with contextlib.suppress(Exception):  # the user's function: what was last read stands
                self._read(self._knobs[name])

    def _read(self, knob: Knob) -> None:
        name = knob.spec.name
        value = knob_value(knob.spec, knob.get())
        if value is None:
            self._values.pop(name, None)
        else:
            self._values[name] = value


def _bound(limit: Any) -> float | None:
    """Return a knob's limit as a message can say it: none where it is infinite."""
    return None if limit is None or math.isinf(limit) else float(limit)
