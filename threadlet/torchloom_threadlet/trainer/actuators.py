"""What a script and its adapter let operations use: knobs, functions, connections.

Knobs are set together or not at all, and rolled back. A worker's :class:`Actuators` are a table of
knobs, and a :class:`~torchloom_threadlet.preview.Preview` has one of its own.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Protocol, TypedDict, Unpack

import msgspec

from torchloom_core.floor.errors import KnobError
from torchloom_core.wire.knobs import check_value, find_spec, shown
from torchloom_core.wire.limits import MAX_KNOBS, MAX_LONG_TEXT, MAX_SHORT_TEXT, MAX_TEXT, KnobValue
from torchloom_core.wire.messages import KnobSpec
from torchloom_threadlet.cleaning import knob_value, text


class Knob(msgspec.Struct, frozen=True):
    """A knob's specification and the user's functions behind it.

    ``check``: called with the values that all knobs would have; raises if they are not compatible.
    """

    spec: KnobSpec
    get: Callable[[], KnobValue]
    set: Callable[[Any], object]
    check: Callable[[Mapping[str, KnobValue]], object] | None = None


class KnobForm(TypedDict, total=False):
    """What a knob accepts: all optional; a float of each worker alone by default."""

    kind: Literal["float", "int", "bool", "choice", "order"]
    low: float | None
    high: float | None
    choices: Iterable[str]
    fence: Literal["worker", "run"]
    check: Callable[[Mapping[str, Any]], object] | None
    used_up: bool
    unit: str
    doc: str


def knob_of(
    name: str, get: Callable[[], Any], set: Callable[[Any], object], **form: Unpack[KnobForm]
) -> Knob:
    """Return a knob from the arguments of ``Loom.knob``.

    Raises TypeError if a keyword is none of :class:`KnobForm`.
    """
    if unknown := form.keys() - KnobForm.__annotations__.keys():
        raise TypeError(f"need {', '.join(KnobForm.__annotations__)}, was {', '.join(unknown)}")
    spec = KnobSpec(
        name=name,
        kind=form.get("kind", "float"),
        fence=form.get("fence", "worker"),
        low=_bound(form.get("low")),
        high=_bound(form.get("high")),
        choices=tuple(text(choice, MAX_LONG_TEXT) for choice in form.get("choices", ())),
        used_up=form.get("used_up", False),
        unit=text(form.get("unit", ""), MAX_SHORT_TEXT),
        doc=text(form.get("doc", ""), MAX_TEXT),
    )
    return Knob(spec, get, set, form.get("check"))


class KnobTable:
    """The knobs by name, with their values when last registered or set."""

    def __init__(self) -> None:
        self._knobs: dict[str, Knob] = {}
        self._values: dict[str, KnobValue] = {}
        self.registered: dict[str, KnobValue] = {}
        """The values that knobs had when they were first registered: the script's own."""

    @property
    def specs(self) -> tuple[KnobSpec, ...]:
        """The specifications of the knobs, in the order they were registered."""
        return tuple(knob.spec for knob in list(self._knobs.values()))

    @property
    def values(self) -> dict[str, KnobValue]:
        """The knobs' values when last registered or set."""
        return dict(self._values)

    def add_knob(self, knob: Knob) -> None:
        """Register a knob, in place of one of the same name.

        Raises KnobError if its specification does not fit a message.
        """
        try:
            msgspec.convert(msgspec.to_builtins(knob.spec), KnobSpec)
        except (msgspec.ValidationError, TypeError) as error:
            raise KnobError(str(error)) from None
        if len({*self._knobs, knob.spec.name}) > MAX_KNOBS:
            raise KnobError(f"need at most {MAX_KNOBS} knobs, this is one more")
        self._read(knob)
        if knob.spec.fence == "run" and knob.spec.name in self._values:
            check_value(knob.spec, self._values[knob.spec.name])
        self._knobs[knob.spec.name] = knob
        if knob.spec.name in self._values:
            self.registered.setdefault(knob.spec.name, self._values[knob.spec.name])

    def set_knob(self, name: str, value: KnobValue) -> None:
        """Call the user's function and read back what it made of the value."""
        knob = self._knobs[name]
        knob.set(check_value(knob.spec, value))
        self._read(knob)
        if knob.spec.fence == "run" and name in self._values:
            check_value(knob.spec, self._values[name])  # else no peer could take it over

    def set_knobs(self, values: Mapping[str, KnobValue]) -> dict[str, KnobValue]:
        """Set several knobs, and return the values before; if one fails, roll all of them back.

        They are set in the order of their registration, whatever their order in ``values``: first
        the optimizer, then its learning rate.

        Raises SystemExit if the rollback fails: this rank must not continue with values of its own.
        """
        before: dict[str, KnobValue] = {}
        try:
            for name in [name for name in self._knobs if name in values]:
                self._look_at([name])  # another knob may just have changed it, as the rate
                if name in self._values:
                    before[name] = self._values[name]
                self.set_knob(name, values[name])
        except Exception:
            self.set_back(before)
            raise
        return before

    def set_back(self, before: Mapping[str, KnobValue]) -> None:
        """Roll knobs back to the values before, the last one first.

        Raises SystemExit if one cannot be set: this rank must not continue with values of its own.
        """
        self.set_like_others(dict(reversed(list(before.items()))))

    def set_like_others(self, values: Mapping[str, KnobValue]) -> None:
        """Set knobs to their values on the other ranks, or exit with one line.

        Raises SystemExit if one cannot be set: this rank must not continue with values of its own.
        """
        for name, value in values.items():
            try:
                spec = find_spec(name, self.specs)
                knob = self._knobs[name]
                with contextlib.suppress(KnobError):  # the other ranks' value, even if out of range
                    value = check_value(spec, value)
                knob.set(value)
            except Exception as error:
                raise SystemExit(
                    f"torchloom: knob {name} cannot be set to {shown(value)}, its value on other "
                    f"ranks, so this rank must not continue: {text(error, MAX_TEXT)}"
                ) from error
            try:
                self._read(knob)
                check_value(knob.spec, self._values[name])
            except Exception:  # noqa: BLE001 - the user's function: set it is, as the others have it
                self._values[name] = value

    def check(self, values: Mapping[str, KnobValue]) -> None:
        """Check with the user's functions that the knobs can take these values together.

        Raises KnobError if a knob is not run-fenced, or cannot take its value.
        """
        for name, value in values.items():
            spec = find_spec(name, self.specs)
            check_value(spec, value)
            if spec.fence != "run":
                raise KnobError(f"knob {name} is worker-fenced: set it alone")
            if name not in self._values:
                raise KnobError(f"knob {name} has no value now, so it could not be rolled back")
        for name in values:
            check = self._knobs[name].check
            if check is not None:
                try:
                    check({**self._values, **values})
                except BaseException as error:  # noqa: BLE001 - the user's, in the link's thread
                    why = text(error, MAX_TEXT) or type(error).__name__
                    raise KnobError(f"knob {name}: {why}") from None

    def fenced_values(self) -> dict[str, KnobValue]:
        """Return the run-fenced knobs' present values, which a joining rank takes over."""
        found: dict[str, KnobValue] = {}
        for name, knob in list(self._knobs.items()):
            if knob.spec.fence != "run":
                continue
            value = self._values.get(name)
            with contextlib.suppress(Exception):  # the user's function: the last value stands
                value = knob_value(knob.spec, knob.get())
            if value is not None:
                found[name] = value
        return found

    def hold(self, name: str, value: KnobValue) -> None:
        """Report this value of a knob, which was set to it and has been moved by a schedule."""
        knob = self._knobs.get(name)
        if knob is not None and (known := knob_value(knob.spec, value)) is not None:
            self._values[name] = known

    def _look_at(self, names: Iterable[str]) -> None:
        for name in names:
            with contextlib.suppress(Exception):  # the user's function: the last value stands
                self._read(self._knobs[name])

    def _read(self, knob: Knob) -> None:
        name = knob.spec.name
        value = knob_value(knob.spec, knob.get())
        if value is None:
            self._values.pop(name, None)
        else:
            self._values[name] = value


def _bound(limit: Any) -> float | None:
    """Return a knob's limit for a message: None where it is infinite."""
    return None if limit is None or math.isinf(limit) else float(limit)


class Connections(Protocol):
    """The connections to peers, as an adapter knows them."""

    def refusal(self, quorum_id: int) -> str:
        """Return why the connections of this quorum cannot be shut down; "" if they can."""

    def cut(self, quorum_id: int) -> str:
        """Shut down the connections of this quorum only; return what was done."""


def _name(function: Any) -> tuple[object, ...]:
    """Return what identifies a function when its definition runs again."""
    name = getattr(function, "__qualname__", None)
    return (getattr(function, "__module__", None), name) if name else (function,)


class Actuators(KnobTable):
    """The knobs and functions that a trainer has registered so far."""

    def __init__(self) -> None:
        super().__init__()
        self.connections: Connections | None = None
        self._functions: dict[str, list[Any]] = {}
        self._earlier: list[Any] = []

    def functions(self, verb: str) -> tuple[Any, ...]:
        """Return what is registered for an operation, in order."""
        return tuple(self._functions.get(verb, ()))

    def add_function(self, verb: str, function: Any) -> None:
        """Register a function; it replaces one of its name from before :meth:`attach_again`."""
        known = self._functions.get(verb, [])
        stale = [f for f in known if f in self._earlier and _name(f) == _name(function)]
        self._functions[verb] = [*(f for f in known if f not in stale), function]

    def attach_again(self) -> None:
        """Note that the script, or a cell of a notebook, may run again from its beginning."""
        self._earlier = [f for functions in self._functions.values() for f in functions]
