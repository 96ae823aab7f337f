"""What every knob should be, and what is still to be said to a worker; the kernel keeps it."""

from collections.abc import Collection, Container, Iterable, Mapping

from msgspec.structs import replace

from torchloom_core.persistent_table import PersistentTable
from torchloom_core.wire.events import KnobDesired
from torchloom_core.wire.knobs import agrees
from torchloom_core.wire.messages import Hello, KnobSpec, KnobValue, SetKnob


class DesiredKnobs:
    """Desired values by worker and knob; the worker None stands for all that have none.

    Attributes
    ----------
    table : PersistentTable of KnobDesired
        By ``all.<knob>`` and ``of.<worker>.<knob>``. Those that wait for a person's word, since
        they were wanted of an earlier job, are given to nobody.
    """

    def __init__(self) -> None:
        self.table: PersistentTable[KnobDesired] = PersistentTable("knob")
        self._told_again: frozenset[tuple[str, int]] = frozenset()

    def restore(self, desired: Iterable[KnobDesired], now_ns: int) -> None:
        """Take over what an earlier Weaver left, whose clock may have been ahead."""
        for wish in desired:
            since_ns = min(wish.since_ns, now_ns)
            kept = wish if since_ns == wish.since_ns else replace(wish, since_ns=since_ns)
            self.table[_key(wish.worker, wish.knob)] = kept

    def snapshot(self) -> tuple[KnobDesired, ...]:
        """Return everything that is desired."""
        return tuple(self.table.values())

    def values(self, knob: str) -> list[KnobValue]:
        """Return what the knob should be, on whichever worker."""
        return [w.value for w in self.table.values() if w.knob == knob and w.value is not None]

    def of_all(self) -> dict[str, KnobValue]:
        """Return what is desired of all that have no wish of their own."""
        wishes = [wish for wish in self.table.values() if not wish.waits]
        return {w.knob: w.value for w in wishes if w.worker is None and w.value is not None}

    def of(self, worker: str | None, knob: str) -> KnobDesired | None:
        """Return what is desired of a worker's knob: of it alone, or else of all; None: of all."""
        return self._wish(worker, knob) or self._wish(None, knob)

    @property
    def waiting(self) -> list[KnobDesired]:
        """What waits for a person's word."""
        return [wish for wish in self.table.values() if wish.waits]

    def set_waiting(self, before_ns: int) -> list[KnobDesired]:
        """Have everything wait that was wanted before; return all that waits."""
        for key, wish in self.table.items():
            if wish.since_ns <= before_ns:
                self.table[key] = replace(wish, waits=True)
        return self.waiting

    def add(self, knob: str, value: KnobValue, worker: str | None, now_ns: int) -> KnobDesired:
        """Keep what a knob should be; a value for all replaces the values for single workers."""
        if worker is None:
            self._drop(knob, None)
        wish = KnobDesired(knob=knob, value=value, worker=worker, since_ns=now_ns)
        self.table[_key(worker, knob)] = wish
        return wish

    def withdraw(
        self, knob: str, value: KnobValue, worker: str | None, began_ns: int
    ) -> list[KnobDesired]:
        """Take back a change that no worker has applied, unless another came after it.

        ``began_ns`` is when the change was granted.
        """
        wish = self.table.get(_key(worker, knob))
        if wish is None or wish.value != value or wish.since_ns > began_ns:
            return []
        del self.table[_key(worker, knob)]
        return [KnobDesired(knob=knob, value=None, worker=worker)]

    def forget(self, knob: str, worker: str | None) -> list[KnobDesired]:
        """Want nothing any more, of one worker or, with ``worker`` None, of any."""
        return [
            KnobDesired(knob=knob, value=None, worker=wish.worker)
            for wish in self._drop(knob, worker)
        ]

    def missing(
        self,
        hello: Hello,
        present: Mapping[str, KnobValue],
        specs: Mapping[str, KnobSpec],
        unsettled: Container[tuple[str, str | None]] = (),
    ) -> list[SetKnob]:
        """Return what a worker must be told so that its worker-fenced knobs are as desired.

        What is desired of all is not of a worker that declares the knob otherwise than ``specs``.
        ``unsettled`` are knob and worker of the desires that may yet turn out to be undone.
        """
        if not self.table:
            return []
        wanted: list[SetKnob] = []
        for name, spec in {spec.name: spec for spec in hello.knobs}.items():
            if spec.fence == "run":
                continue
            whose: str | None = hello.worker
            value = self._value(whose, name)
            if value is None and agrees((spec,), specs.get(name, spec)):
                whose, value = None, self._value(None, name)
            if (name, whose) in unsettled:
                continue
            if value is not None and value != present.get(name):
                wanted.append(SetKnob(knob=name, value=value))
        return wanted

    def nowhere(
        self,
        specs: Mapping[str, KnobSpec],
        lives: Iterable[tuple[str, int]],
        present: Collection[Mapping[str, KnobValue]],
    ) -> dict[str, KnobValue]:
        """Return the run-fenced knobs that no worker has as desired: the run has begun anew.

        They are to be set again, once: not of lives of which some were in the last answer.
        """
        told = frozenset(lives)
        wanted = {
            wish.knob: wish.value
            for wish in self.table.values()
            if wish.value is not None
            and not wish.waits
            and wish.worker is None
            and wish.knob in specs
            and specs[wish.knob].fence == "run"
            and not specs[wish.knob].used_up
            and all(own.get(wish.knob) != wish.value for own in present)
        }
        if not told or not wanted or told & self._told_again:
            return {}
        self._told_again = told
        return wanted

    def _value(self, worker: str | None, knob: str) -> KnobValue | None:
        wish = self._wish(worker, knob)
        return None if wish is None else wish.value

    def _wish(self, worker: str | None, knob: str) -> KnobDesired | None:
        wish = self.table.get(_key(worker, knob))
        return None if wish is None or wish.waits else wish

    def _drop(self, knob: str, worker: str | None) -> list[KnobDesired]:
        over = [
            wish
            for wish in self.table.values()
            if wish.knob == knob and worker in (None, wish.worker)
        ]
        for wish in over:
            del self.table[_key(wish.worker, knob)]
        return over


def _key(worker: str | None, knob: str) -> str:
    return f"all.{knob}" if worker is None else f"of.{worker}.{knob}"
