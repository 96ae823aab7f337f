"""The requests of people to a running Weaver, and its answers.

Every verb is a NATS request on ``tl.ctl.<run>.<person>.<verb>`` with a JSON body, sent by the
command line or a plain ``nats req``. ``status`` and ``knobs`` only read; the others become a
:class:`~torchloom_core.wire.requests.Request` to the kernel, which is recorded. Bodies of
``knob.*``, ``propose``, ``approve`` and ``deny`` may have an ``"id"`` (:data:`RequestId`): a
request that is sent again with the same id gets the same answer and is not done again. All
requests that act may have a ``"session"``: the web page that sends them.

==================  =======================================  ==========================
verb                body                                     answer
==================  =======================================  ==========================
``status``          empty or :class:`Page`                   :class:`Status`
``knobs``           empty or :class:`Page`                   :class:`KnobTable`
``knob.set``        :class:`KnobSet`                         :class:`Answer`
``knob.unset``      :class:`KnobUnset`                       :class:`Answer`
``propose``         ``{"action": {"kind": ..., ...}}``,      :class:`Answer`
                    ``"sure"`` as of :class:`KnobSet`
``approve``         ``{"proposal": id}``                     :class:`Answer`
``deny``            ``{"proposal": id, "reason": ...}``      :class:`Answer`
``actions.stop``    empty or :class:`FromSession`            :class:`Answer`
``actions.resume``  empty or :class:`FromSession`            :class:`Answer`
``annotate``        :class:`Annotation`                      :class:`Answer`
``control.take``    :class:`ControlTaken`                    :class:`Answer`
``control.release`` :class:`FromSession`                     :class:`Answer`
==================  =======================================  ==========================
"""

from typing import Annotated

import msgspec

from torchloom_core.floor.errors import MessageError
from torchloom_core.wire.actions import ChangeKnob, ChangeKnobs, Guard
from torchloom_core.wire.decisions import KnobDesired
from torchloom_core.wire.limits import (
    MAX_KNOBS,
    MAX_TEXT,
    KnobName,
    KnobValue,
    KnobValues,
    Name,
    RackName,
    RoleName,
    SessionName,
)
from torchloom_core.wire.messages import KnobSpec
from torchloom_core.wire.placement import TRAINER

RequestId = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z")]
"""The sender's id of a request, new for each, so that the request can be sent again."""


SUMMARISED = 200
"""Runs of more workers than these are summarised, where a :class:`Page` wants a summary."""


class Page(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of an answer with an entry per worker that follows the worker ``after``.

    An answer with ``more`` is continued by a request for the page after its last worker. Without
    ``workers`` the answer has no entries of workers.

    Of ``status`` alone: with ``summary`` a run of more than :data:`SUMMARISED` workers is answered
    without their entries, with ``counts`` and ``unusual`` instead. ``state``, ``group`` and
    ``role`` select workers, the state as ``ending`` or ``state`` of :class:`WorkerStatus` shows it;
    ``limit`` is the most of them in one answer, 0: as many as fit.
    """

    after: RackName = ""
    workers: bool = True
    summary: bool = False
    state: RackName = ""
    group: RackName = ""
    role: RoleName = ""
    limit: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0


class FromSession(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A request without parameters except the web page that sends it."""

    session: SessionName = ""


class KnobSet(FromSession, frozen=True, kw_only=True):
    """Set a knob on one worker, or on all that have it when ``worker`` is absent.

    ``role`` names whose knob it is, if several roles have one of its name.
    Several run-fenced knobs can be set at once, the others in ``also``, with a ``guard``. A value
    that is far from those in use is refused unless the person is ``sure``.
    """

    knob: KnobName
    value: KnobValue
    also: KnobValues = {}
    worker: Name | None = None
    role: RoleName = ""
    guard: Guard | None = None
    sure: bool = False
    id: RequestId = ""

    def action(self) -> ChangeKnob | ChangeKnobs:
        """Return the action to propose.

        Raises
        ------
        MessageError
            If several knobs or a guard are for one worker, or a knob is named twice.
        """
        if not self.also and self.guard is None:
            role = self.role or msgspec.UNSET
            return ChangeKnob(knob=self.knob, value=self.value, worker=self.worker, role=role)
        if self.worker is not None:
            raise MessageError(
                "knob.set: several knobs or a guard apply to all workers: need no worker, "
                f"was {self.worker!r}"
            )
        if len(self.also) >= MAX_KNOBS:
            raise MessageError(
                f"knob.set: need at most {MAX_KNOBS} knobs, was {len(self.also) + 1}"
            )
        if self.knob in self.also:
            raise MessageError(f"knob.set: need each knob once, was {self.knob!r} twice")
        values = {self.knob: self.value, **self.also}
        return ChangeKnobs(values=values, guard=self.guard, role=self.role)


class KnobUnset(FromSession, frozen=True, kw_only=True):
    """Drop the desired value of a knob, of one worker or, when ``worker`` is absent, of all.

    ``role`` names whose, if several roles have a desired value of it.
    """

    knob: KnobName
    worker: Name | None = None
    role: RoleName = ""
    id: RequestId = ""


class Annotation(FromSession, frozen=True, kw_only=True):
    """Add a text to the record."""

    text: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TEXT)]
    id: RequestId = ""


class ControlTaken(FromSession, frozen=True, kw_only=True):
    """Take the control lease; see :class:`~torchloom_core.wire.requests.TakeControl`."""

    session: Annotated[SessionName, msgspec.Meta(min_length=1)]
    lease_s: Annotated[float, msgspec.Meta(ge=1, le=3600)] = 60.0
    force: bool = False


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request; ``ids`` are its commands."""

    ok: bool
    text: str
    ids: tuple[str, ...] = ()


class KnobTable(msgspec.Struct, frozen=True, kw_only=True):
    """Every knob of the run: its specification, desired value and present values.

    A later :class:`Page` has only the next ``values``. If the specs exceed half a message, those
    that the fewest workers declare are left out, ``left_out`` in number. ``tried`` are the knobs
    whose change a standby can preview.

    In a run of several roles ``of_role`` has the specifications by role, as two roles may have a
    knob of one name, and ``roles`` the role of each worker in ``values`` that is no trainer.
    """

    specs: tuple[KnobSpec, ...] = ()
    desired: tuple[KnobDesired, ...] = ()
    values: dict[str, dict[str, KnobValue]] = {}
    more: bool = False
    left_out: int = 0
    tried: tuple[str, ...] = ()
    of_role: dict[str, tuple[KnobSpec, ...]] = {}
    roles: dict[str, str] = {}

    def by_role(self) -> "dict[str, KnobTable]":
        """Return the table of each role; of a run with one role this one, as that of ""."""
        if not self.of_role:
            return {"": self}
        return {
            role: msgspec.structs.replace(
                self,
                specs=specs,
                desired=tuple(d for d in self.desired if (d.role or TRAINER) == role),
                values={w: v for w, v in self.values.items() if self.role_of(w) == role},
                of_role={},
            )
            for role, specs in self.of_role.items()
        }

    def role_of(self, worker: str) -> str:
        """Return the role of a worker in ``values``."""
        return self.roles.get(worker, TRAINER)
