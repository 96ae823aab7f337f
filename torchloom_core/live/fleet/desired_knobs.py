"""The desired values of knobs, and the changes that workers still need; part of the kernel."""

from collections.abc import Collection, Container, Iterable, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from torchloom_core.floor.persistent_table import PersistentTable
from torchloom_core.wire.decisions import KnobDesired
from torchloom_core.wire.knobs import agrees
from torchloom_core.wire.limits import KnobValue
from torchloom_core.wire.messages import Hello, KnobSpec
from torchloom_core.wire.operations import SetKnob
from torchloom_core.wire.placement import TRAINER


class DesiredKnobs:
    """Desired values by role, worker and knob; worker None stands for all without their own.

    Attributes
    ----------
    table : PersistentTable of KnobDesired
        By ``all.<knob>`` for the trainers, ``role.<role>.<knob>`` for another role, and
        ``of.<worker>.<knob>``. Values of an earlier job wait for a person's decision, and are not
        sent to workers.
    """

    def __init__(self) -> None:
        self.table: PersistentTable[KnobDesired] = PersistentTable("knob")
        self._set_again: dict[str, frozenset[tuple[str, int]]] = {}

    def restore(self, desired: Iterable[KnobDesired], now_ns: int) -> None:
        """Restore the values of an earlier Weaver, whose clock may have been ahead."""
        for entry in desired:
            since_ns = min(entry.since_ns, now_ns)
            restored = entry if since_ns == entry.since_ns else replace(entry, since_ns=since_ns)
            self.table[key_of(entry)] = restored

    def snapshot(self) -> tuple[KnobDesired, ...]:
        """Return all desired values."""
        return tuple(self.table.values())

    def values(self, knob: str, role: str = TRAINER) -> list[KnobValue]:
        """Return the desired values of a role's knob, for any worker; not of an earlier job."""
        own = [entry for entry in self._of_role(role) if entry.knob == knob and not entry.waits]
        return [entry.value for entry in own if entry.value is not None]

    def of_all(self, role: str = TRAINER) -> dict[str, KnobValue]:
        """Return the desired values for all workers of a role without their own."""
        entries = [entry for entry in self._of_role(role) if not entry.waits]
        return {w.knob: w.value for w in entries if w.worker is None and w.value is not None}

    def of(self, worker: str | None, knob: str, role: str = TRAINER) -> KnobDesired | None:
        """Return the desired value of a worker's knob, its own or else that for its role."""
        return self._entry(worker, knob, role) or self._entry(None, knob, role)

    def roles(self, knob: str) -> list[str]:
        """Return the roles with a desired value of a knob, for all or for single workers."""
        own = [entry for entry in self.table.values() if entry.knob == knob]
        return sorted({entry.role or TRAINER for entry in own})

    @property
    def waiting(self) -> list[KnobDesired]:
        """The values that wait for a person's decision."""
        return [entry for entry in self.table.values() if entry.waits]

    def set_waiting(self, before_ns: int) -> list[KnobDesired]:
        """Mark all values set by ``before_ns`` as waiting; return all that wait."""
        for key, entry in self.table.items():
            if entry.since_ns <= before_ns:
                self.table[key] = replace(entry, waits=True)
        return self.waiting

    def add(
        self, knob: str, value: KnobValue, worker: str | None, now_ns: int, role: str = TRAINER
    ) -> KnobDesired:
        """Set a desired value; a value for a role replaces the values for its single workers."""
        if worker is None:
            self._drop(knob, None, role)
        entry = KnobDesired(
            knob=knob, value=value, worker=worker, since_ns=now_ns, role=_field(role)
        )
        self.table[key_of(entry)] = entry
        return entry

    def withdraw(
        self, knob: str, value: KnobValue, worker: str | None, began_ns: int, role: str = TRAINER
    ) -> list[KnobDesired]:
        """Withdraw a change that no worker has applied, unless a later one replaced it.

        ``began_ns`` is the time at which the change was granted.
        """
        entry = self.table.get(_key(worker, knob, role))
        if entry is None or entry.value != value or entry.since_ns > began_ns:
            return []
        del self.table[_key(worker, knob, role)]
        return [KnobDesired(knob=knob, value=None, worker=worker, role=_field(role))]

    def forget(self, knob: str, worker: str | None, role: str = "") -> list[KnobDesired]:
        """Drop the desired value of one worker, or with ``worker`` None of all of a role.

        An empty ``role`` stands for all roles.
        """
        return [
            KnobDesired(knob=knob, value=None, worker=entry.worker, role=entry.role)
            for entry in self._drop(knob, worker, role)
        ]

    def forget_worker(self, worker: str) -> list[KnobDesired]:
        """Drop the values that are for one worker alone."""
        own = [entry.knob for entry in self.table.values() if entry.worker == worker]
        return [gone for knob in own for gone in self.forget(knob, worker)]

    def missing(
        self,
        hello: Hello,
        present: Mapping[str, KnobValue],
        specs: Mapping[str, KnobSpec],
        unsettled: Container[tuple[str, str | None]] = (),
    ) -> list[SetKnob]:
        """Return the operations that bring a worker's worker-fenced knobs to the desired values.

        Values for all do not apply to a worker that declares the knob differently than ``specs``,
        those of its role. ``unsettled`` are knob and worker of values that may be rolled back yet.
        """
        if not self.table:
            return []
        wanted: list[SetKnob] = []
        for name, spec in {spec.name: spec for spec in hello.knobs}.items():
            if spec.fence == "run":
                continue
            worker: str | None = hello.worker
            value = self._value(worker, name, hello.role)
            if value is None and agrees((spec,), specs.get(name, spec)):
                worker, value = None, self._value(None, name, hello.role)
            if (name, worker) in unsettled:
                continue
            if value is not None and value != present.get(name):
                wanted.append(SetKnob(knob=name, value=value))
        return wanted

    def nowhere(
        self,
        specs: Mapping[str, KnobSpec],
        incarnations: Iterable[tuple[str, int]],
        present: Collection[Mapping[str, KnobValue]],
        role: str = TRAINER,
    ) -> dict[str, KnobValue]:
        """Return the run-fenced knobs that no worker of a role has at the desired value.

        The run has started over, and they are set again, once: not if some of the incarnations
        were in the last answer.
        """
        current = frozenset(incarnations)
        wanted = {
            entry.knob: entry.value
            for entry in self._of_role(role)
            if entry.value is not None
            and not entry.waits
            and entry.worker is None
            and entry.knob in specs
            and specs[entry.knob].fence == "run"
            and not specs[entry.knob].used_up
            and all(own.get(entry.knob) != entry.value for own in present)
        }
        if not current or not wanted or current & self._set_again.get(role, frozenset()):
            return {}
        self._set_again[role] = current
        return wanted

    def _of_role(self, role: str) -> Iterator[KnobDesired]:
        return (entry for entry in self.table.values() if (entry.role or TRAINER) == role)

    def _value(self, worker: str | None, knob: str, role: str) -> KnobValue | None:
        entry = self._entry(worker, knob, role)
        return None if entry is None else entry.value

    def _entry(self, worker: str | None, knob: str, role: str) -> KnobDesired | None:
        entry = self.table.get(_key(worker, knob, role))
        return None if entry is None or entry.waits else entry

    def _drop(self, knob: str, worker: str | None, role: str) -> list[KnobDesired]:
        over = [
            entry
            for entry in self.table.values()
            if entry.knob == knob
            and worker in (None, entry.worker)
            and role in ("", entry.role or TRAINER)
        ]
        for entry in over:
            del self.table[key_of(entry)]
        return over


def key_of(entry: KnobDesired) -> str:
    """Return the key of a desired value in the stored state."""
    return _key(entry.worker, entry.knob, entry.role or TRAINER)


def _key(worker: str | None, knob: str, role: str) -> str:
    if worker is not None:
        return f"of.{worker}.{knob}"
    return f"all.{knob}" if role == TRAINER else f"role.{role}.{knob}"


def _field(role: str) -> str | msgspec.UnsetType:
    return msgspec.UNSET if role == TRAINER else role
