"""What the links carry and when, and which two runs meet it."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from torchloom_core.cli.demo.scenario import NODE, Training

HEARTBEAT_S = 0.1
SETTLE_STEPS = 10
"""Steps after a change of the bandwidth that are not counted as the phase's own."""

TRAINING = Training(
    config="bandwidth.toml",
    heartbeat_s=HEARTBEAT_S,
    steps=100_000,
    step_ms=60.0,
    places=NODE.places[:3],
    options=("--width", "1024", "--lr", "0.005"),
)


@cache
def quality_of_modes() -> dict[str, float]:
    """Return what a step in each mode is worth, by the demo's configuration."""
    text = files("torchloom_core.cli.demo").joinpath(TRAINING.config).read_text(encoding="utf-8")
    quality = tomllib.loads(text)["policies"]["allreduce_tuner"]["quality"]
    return {str(mode): float(worth) for mode, worth in quality.items()}


@dataclass(frozen=True)
class Phase:
    """What each group's link carries for a while.

    Attributes
    ----------
    mbit : float or None
        Mbit/s each way; None: as much as the machine can.
    """

    mbit: float | None
    seconds: float

    @property
    def text(self) -> str:
        """The bandwidth, for people."""
        return "unshaped" if self.mbit is None else f"{self.mbit:g} Mbit/s"


SCRIPT = (Phase(None, 12.0), Phase(200.0, 14.0), Phase(20.0, 20.0), Phase(200.0, 14.0))


@dataclass(frozen=True)
class Arm:
    """One run through the script.

    Attributes
    ----------
    tuned : bool
        Whether the tuner acts; it looks on otherwise, and says what it would have done.
    """

    folder: str
    title: str
    tuned: bool


ARMS = (
    Arm("without", "nothing compressed (the tuner looks on)", tuned=False),
    Arm("with", "with allreduce_tuner", tuned=True),
)
