"""What every knob should be, and what is still to be said to a worker; the kernel keeps it."""

from collections.abc import Iterable, Mapping

from torchloom_core.actions import ChangeKnob
from torchloom_core.decisions import KnobDesired
from torchloom_core.messages import Hello, KnobValue, SetKnob


class DesiredKnobs:
    """Desired values by worker and knob; the worker None stands for all that have none."""

    def __init__(self) -> None:
        self.values: dict[tuple[str | None, str], KnobValue] = {}

    def restore(self, desired: Iterable[KnobDesired]) -> None:
        """Take over what an earlier Weaver left."""
        self.values = {(d.worker, d.knob): d.value for d in desired if d.value is not None}

    def snapshot(self) -> tuple[KnobDesired, ...]:
        """Return everything that is desired."""
        return tuple(
            KnobDesired(knob=knob, value=value, worker=worker)
            for (worker, knob), value in self.values.items()
        )

    def add(self, action: ChangeKnob) -> KnobDesired:
        """Keep what a knob should be; a value for all replaces the values for single workers."""
        if action.worker is None:
            self.values = {k: v for k, v in self.values.items() if k[1] != action.knob}
        self.values[action.worker, action.knob] = action.value
        return KnobDesired(knob=action.knob, value=action.value, worker=action.worker)

    def withdraw(self, action: ChangeKnob) -> list[KnobDesired]:
        """Take back a change that no worker has applied, unless another came after it."""
        if self.values.get((action.worker, action.knob)) != action.value:
            return []
        return self.forget(action.knob, action.worker)

    def forget(self, knob: str, worker: str | None) -> list[KnobDesired]:
        """Want nothing any more, of one worker or, with ``worker`` None, of any."""
        over = [key for key in self.values if key[1] == knob and worker in (None, key[0])]
        for key in over:
            del self.values[key]
        return [KnobDesired(knob=knob, value=None, worker=owner) for owner, _ in over]

    def missing(self, hello: Hello, present: Mapping[str, KnobValue]) -> list[SetKnob]:
        """Return what a worker must be told so that its knobs are as desired."""
        wanted: list[SetKnob] = []
        for name in dict.fromkeys(spec.name for spec in hello.knobs):
            value = self.values.get((hello.worker, name), self.values.get((None, name)))
            if value is not None and value != present.get(name):
                wanted.append(SetKnob(knob=name, value=value))
        return wanted
