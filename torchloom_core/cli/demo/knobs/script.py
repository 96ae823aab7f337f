"""What is changed in the demo of the knobs, and how a person would ask for it."""

from dataclasses import dataclass

from torchloom_core.cli.demo.scenario import NODE, Training
from torchloom_core.wire.actions import Guard
from torchloom_core.wire.messages import KnobValues
from torchloom_core.wire.operator import KnobSet

WATCHED = "loss"
WINDOW_S = 3.0
LAST_STEPS = 15
"""How many steps the run goes on after its end was asked for."""

TRAINING = Training(config="knobs.toml", heartbeat_s=0.1, steps=3000, places=NODE.places[:3])
SHOWN = ("lr", "clip_norm", "momentum", "compression")
"""The knobs that are shown while the run goes on."""
VICTIM = TRAINING.places[1]
"""Whose trainer is killed, and comes back."""


@dataclass(frozen=True)
class Change:
    """One ``torchloom knob set``.

    Attributes
    ----------
    title : str
        What it shows, in a few words.
    watched : bool
        Whether it is guarded by the loss.
    sure : bool
        Whether the person means it, though a value is far from those in use.
    under_kill : bool
        Whether a group is killed while it is under way.
    rest_steps : int
        How many steps are watched once it is over.
    """

    title: str
    values: KnobValues
    watched: bool = False
    sure: bool = False
    under_kill: bool = False
    rest_steps: int = 25

    @property
    def command(self) -> str:
        """The line that a person would type."""
        words = [f"{knob} {value}" for knob, value in self.values.items()]
        words += [f"--watch {WATCHED} --window {WINDOW_S:g}"] if self.watched else []
        words += ["--yes"] if self.sure else []
        return " ".join(["torchloom knob set", *words])

    @property
    def request(self) -> KnobSet:
        """What that command sends."""
        (knob, value), *more = self.values.items()
        guard = Guard(metric=WATCHED, window_s=WINDOW_S) if self.watched else None
        return KnobSet(knob=knob, value=value, also=dict(more), guard=guard, sure=self.sure)


SCRIPT = (
    Change("several at once", {"lr": 0.1, "clip_norm": 1.0}, watched=True),
    Change("what goes over the wire", {"compression": "bf16"}),
    Change("and less of it", {"compression": "int8"}),
    Change("while g1 is killed", {"compression": "bf16", "momentum": 0.8}, under_kill=True),
    Change("one that hurts", {"lr": 1.0}, watched=True, rest_steps=40),
)


def ending(step: int) -> Change:
    """Return the change that ends the run, soon after ``step``."""
    return Change("a knob of the script's own", {"steps": step + LAST_STEPS}, sure=True)
