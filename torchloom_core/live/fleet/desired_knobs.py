"""The desired values of knobs, and the changes that workers still need; part of the kernel."""

from collections.abc import Collection, Container, Iterable, Mapping

from msgspec.structs import replace

from torchloom_core.floor.persistent_table import PersistentTable
from torchloom_core.wire.decisions import KnobDesired
from torchloom_core.wire.knobs import agrees
from torchloom_core.wire.limits import KnobValue
from torchloom_core.wire.messages import Hello, KnobSpec
from torchloom_core.wire.operations import SetKnob


class DesiredKnobs:
    """Desired values by worker and knob; worker None stands for all without their own.

    Attributes
    ----------
    table : PersistentTable of KnobDesired
        By ``all.<knob>`` and ``of.<worker>.<knob>``. Values of an earlier job wait for a person's
        decision, and are not sent to workers.
    """

    def __init__(self) -> None:
        self.table: PersistentTable[KnobDesired] = PersistentTable("knob")
        self._set_again: frozenset[tuple[str, int]] = frozenset()

    def restore(self, desired: Iterable[KnobDesired], now_ns: int) -> None:
        """Restore the values of an earlier Weaver, whose clock may have been ahead."""
        for entry in desired:
            since_ns = min(entry.since_ns, now_ns)
            restored = entry if since_ns == entry.since_ns else replace(entry, since_ns=since_ns)
            self.table[_key(entry.worker, entry.knob)] = restored

    def snapshot(self) -> tuple[KnobDesired, ...]:
        """Return all desired values."""
        return tuple(self.table.values())

    def values(self, knob: str) -> list[KnobValue]:
        """Return the desired values of a knob, for any worker; not those of an earlier job."""
        own = [entry for entry in self.table.values() if entry.knob == knob and not entry.waits]
        return [entry.value for entry in own if entry.value is not None]

    def of_all(self) -> dict[str, KnobValue]:
        """Return the desired values for all workers without their own."""
        entries = [entry for entry in self.table.values() if not entry.waits]
        return {w.knob: w.value for w in entries if w.worker is None and w.value is not None}

    def of(self, worker: str | None, knob: str) -> KnobDesired | None:
        """Return the desired value of a worker's knob, its own or else that for all workers."""
        return self._entry(worker, knob) or self._entry(None, knob)

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

    def add(self, knob: str, value: KnobValue, worker: str | None, now_ns: int) -> KnobDesired:
        """Set a desired value; a value for all replaces the values for single workers."""
        if worker is None:
            self._drop(knob, None)
        entry = KnobDesired(knob=knob, value=value, worker=worker, since_ns=now_ns)
        self.table[_key(worker, knob)] = entry
        return entry

    def withdraw(
        self, knob: str, value: KnobValue, worker: str | None, began_ns: int
    ) -> list[KnobDesired]:
        """Withdraw a change that no worker has applied, unless a later one replaced it.

        ``began_ns`` is the time at which the change was granted.
        """
        entry = self.table.get(_key(worker, knob))
        if entry is None or entry.value != value or entry.since_ns > began_ns:
            return []
        del self.table[_key(worker, knob)]
        return [KnobDesired(knob=knob, value=None, worker=worker)]

    def forget(self, knob: str, worker: str | None) -> list[KnobDesired]:
        """Drop the desired value of one worker, or with ``worker`` None of all workers."""
        return [
            KnobDesired(knob=knob, value=None, worker=entry.worker)
            for entry in self._drop(knob, worker)
        ]

    def missing(
        self,
        hello: Hello,
        present: Mapping[str, KnobValue],
        specs: Mapping[str, KnobSpec],
        unsettled: Container[tuple[str, str | None]] = (),
    ) -> list[SetKnob]:
        """Return the operations that bring a worker's worker-fenced knobs to the desired values.

        Values for all do not apply to a worker that declares the knob differently than ``specs``.
        ``unsettled`` are knob and worker of values that may still be rolled back.
        """
        if not self.table:
            return []
        wanted: list[SetKnob] = []
        for name, spec in {spec.name: spec for spec in hello.knobs}.items():
            if spec.fence == "run":
                continue
            worker: str | None = hello.worker
            value = self._value(worker, name)
            if value is None and agrees((spec,), specs.get(name, spec)):
                worker, value = None, self._value(None, name)
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
    ) -> dict[str, KnobValue]:
        """Return the run-fenced knobs that no worker has at the desired value.

        The run has started over, and they are set again, once: not if some of the incarnations
        were in the last answer.
        """
        current = frozenset(incarnations)
        wanted = {
            entry.knob: entry.value
            for entry in self.table.values()
            if entry.value is not None
            and not entry.waits
            and entry.worker is None
            and entry.knob in specs
            and specs[entry.knob].fence == "run"
            and not specs[entry.knob].used_up
            and all(own.get(entry.knob) != entry.value for own in present)
        }
        if not current or not wanted or current & self._set_again:
            return {}
        self._set_again = current
        return wanted

    def _value(self, worker: str | None, knob: str) -> KnobValue | None:
        entry = self._entry(worker, knob)
        return None if entry is None else entry.value

    def _entry(self, worker: str | None, knob: str) -> KnobDesired | None:
        entry = self.table.get(_key(worker, knob))
        return None if entry is None or entry.waits else entry

    def _drop(self, knob: str, worker: str | None) -> list[KnobDesired]:
        over = [
            entry
            for entry in self.table.values()
            if entry.knob == knob and worker in (None, entry.worker)
        ]
        for entry in over:
            del self.table[_key(entry.worker, knob)]
        return over


def _key(worker: str | None, knob: str) -> str:
    return f"all.{knob}" if worker is None else f"of.{worker}.{knob}"
