"""The changes of the knobs demo, and the commands that would make them."""

from dataclasses import dataclass

from torchloom_core.demos.scenario import NODE, Training
from torchloom_core.wire.actions import Guard
from torchloom_core.wire.limits import KnobValues
from torchloom_core.wire.operator import KnobSet

WATCHED = "loss"
WINDOW_S = 3.0
LAST_STEPS = 15
"""Steps that the run continues after the request to end it."""

TRAINING = Training(config="knobs.toml", heartbeat_s=0.1, steps=3000, places=NODE.places[:3])
SHOWN = ("lr", "clip_norm", "momentum", "compression")
"""The knobs that the live table shows."""
VICTIM = TRAINING.places[1]
"""The group whose trainer is killed and restarted."""


@dataclass(frozen=True)
class Change:
    """One ``torchloom knob set``, which the loss guards if ``watched``.

    It accepts a value far from those in use if ``sure``. A group is killed meanwhile if
    ``under_kill``. ``rest_steps`` is how many steps to wait afterwards.
    """

    values: KnobValues
    watched: bool = False
    sure: bool = False
    under_kill: bool = False
    rest_steps: int = 25

    @property
    def command(self) -> str:
        """The equivalent command line."""
        words = [f"{knob} {value}" for knob, value in self.values.items()]
        words += [f"--watch {WATCHED} --window {WINDOW_S:g}"] if self.watched else []
        words += ["--yes"] if self.sure else []
        return " ".join(["torchloom knob set", *words])

    @property
    def request(self) -> KnobSet:
        """The request that the command sends."""
        (knob, value), *more = self.values.items()
        guard = Guard(metric=WATCHED, window_s=WINDOW_S) if self.watched else None
        return KnobSet(knob=knob, value=value, also=dict(more), guard=guard, sure=self.sure)


SCRIPT = (
    Change({"lr": 0.1, "clip_norm": 1.0}, watched=True),
    Change({"compression": "bf16"}),
    Change({"compression": "int8"}),
    Change({"compression": "bf16", "momentum": 0.8}, under_kill=True),
    Change({"lr": 1.0}, watched=True, rest_steps=40),
)


def ending(step: int) -> Change:
    """Return the change that ends the run, soon after ``step``."""
    return Change({"steps": step + LAST_STEPS}, sure=True)
