"""What a worker lets itself be told: its knobs, and what to call for a checkpoint or a drain."""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import msgspec

from torchloom_core.errors import KnobError
from torchloom_core.wire.knobs import check_value, find_spec, shown
from torchloom_core.wire.landscape import Look, Piece
from torchloom_core.wire.limits import MAX_KNOBS, MAX_TEXT
from torchloom_core.wire.messages import (
    Checkpoint,
    Cut,
    Deed,
    Join,
    KnobSpec,
    KnobValue,
    Pause,
    Prepare,
    Resume,
    Rewind,
    SetKnob,
    SetKnobs,
    Survey,
    Together,
    WorkerState,
)
from torchloom_threadlet.cleaning import knob_value, text


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


class Connections(Protocol):
    """The connections to peers, as an adapter knows them."""

    def refusal(self, quorum_id: int) -> str:
        """Return why those of this quorum cannot be cut; empty if they can."""

    def cut(self, quorum_id: int) -> str:
        """Shut down those of this quorum, of no other; say what was done."""


class Surveyor(Protocol):
    """What looks at the loss around the run's newest weights, as the script offers it."""

    @property
    def has_path(self) -> bool:
        """Whether the run's checkpoints can be looked at."""

    def survey(
        self,
        look: Look,
        seconds: float,
        tell: Callable[[int, int, Piece], object],
        is_asked: Callable[[], bool],
    ) -> str:
        """Look, tell what is found piece by piece, and return how far it came."""


class Actuators:
    """The knobs and callbacks that a trainer has registered so far.

    Attributes
    ----------
    prepared : bool
        Whether a stand-by has gone on to where its Manager waits.
    """

    def __init__(
        self,
        *,
        standby: bool,
        held: bool,
        can_agree: Callable[[], bool],
        landscape: Surveyor | None = None,
    ) -> None:
        self.can_agree = can_agree
        self.landscape = landscape
        self._standby = standby
        self._held = held
        self.prepared = False
        self._knobs: dict[str, Knob] = {}
        self._values: dict[str, KnobValue] = {}
        self.checkpoint: list[Callable[[], object]] = []
        self.drain: list[Callable[[], object]] = []
        self.rewind: list[Callable[[int], object]] = []
        self.connections: Connections | None = None

    @property
    def specs(self) -> tuple[KnobSpec, ...]:
        """The specifications of the knobs, in the order they were registered."""
        return tuple(knob.spec for knob in list(self._knobs.values()))

    @property
    def values(self) -> dict[str, KnobValue]:
        """The knobs' values, as they were when last registered or set."""
        return dict(self._values)

    @property
    def names(self) -> tuple[str, ...]:
        """The verbs that this worker obeys."""
        names = ["drain", "pause", "resume", "dump", "terminate"]
        if self._knobs:
            names.append("set_knob")
        if self.can_agree():
            names.append("together")
        if self.rewind:
            names.append("rewind")
        if self.checkpoint:
            names.append("checkpoint")
        if self.connections is not None:
            names.append("cut")
        if self._standby:
            names.append("join")
            if self._held:
                names.append("prepared" if self.prepared else "prepare")
            if self.landscape is not None:
                names.append("survey")
        return tuple(names)

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

    def cut(self, quorum_id: int) -> str:
        """Shut down the connections of a quorum, and say what was done."""
        return self.connections.cut(quorum_id) if self.connections else ""

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

    def refusal(self, deed: Deed, state: WorkerState) -> str | None:
        """Return why ``deed`` cannot be done in ``state``, or None if it can."""
        if state == "left":
            return "the worker has left"
        match deed:
            case SetKnob(knob=name, value=value):
                return self._knob_refusal(name, value)
            case Checkpoint() if not self.checkpoint:
                return "the trainer has registered no function to save by loom.on_checkpoint"
            case Prepare() if state != "standby" or "prepare" not in self.names:
                return "need a stand-by that waits in attach(held=True)"
            case Join() if state != "standby":
                return f"need a stand-by, the worker is {state}"
            case Pause() | Resume() if state == "standby":
                return "the worker is standing by"
            case Together() if not self.can_agree():
                return "nothing is attached here by which this worker agrees with the others"
            case Together(do=SetKnobs(values=values)):
                return self._knobs_refusal(values)
            case Together(do=Rewind()) if not self.rewind:
                return "the trainer has registered no function to go back by loom.on_rewind"
            case Together() if state == "standby":
                return "the worker is standing by"
            case Survey(points=points, plane=plane) if points:
                return self._survey_refusal(state, plane)
            case Cut(quorum_id=quorum_id):
                return self._cut_refusal(quorum_id)
        return None

    def _cut_refusal(self, quorum_id: int) -> str | None:
        if self.connections is None:
            return "nothing here knows the connections of a quorum"
        return self.connections.refusal(quorum_id) or None

    def _survey_refusal(self, state: WorkerState, plane: str) -> str | None:
        if state != "standby":
            return f"need a stand-by, the worker is {state}"
        if self.landscape is None:
            return "the script offers no landscape: need landscape= in attach()"
        if plane == "path" and not self.landscape.has_path:
            return "the script's Landscape has no checkpoints to look at: need path="
        return None

    def _knobs_refusal(self, values: Mapping[str, KnobValue]) -> str | None:
        try:
            self.check(values)
        except KnobError as error:
            return str(error)
        return None

    def _knob_refusal(self, name: str, value: KnobValue) -> str | None:
        try:
            spec = find_spec(name, self.specs)
            check_value(spec, value)
        except KnobError as error:
            return str(error)
        if spec.fence == "run":
            return f"knob {name} is run-fenced: one worker cannot change it alone"
        return None
