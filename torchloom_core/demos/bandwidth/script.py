"""The bandwidth of the links over time, and the two arms that are compared."""

import tomllib
from dataclasses import dataclass
from functools import cache

from torchloom_core.demos.scenario import NODE, Training

HEARTBEAT_S = 0.1
SETTLE_STEPS = 10
"""Steps after a change of bandwidth that do not count for the phase."""

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
    """Return the quality of a step in each mode, from the demo's configuration."""
    quality = tomllib.loads(TRAINING.config_text())["policies"]["allreduce_tuner"]["quality"]
    return {str(mode): float(worth) for mode, worth in quality.items()}


@dataclass(frozen=True)
class Phase:
    """A time with a constant bandwidth of all links in each direction; None: unlimited."""

    mbit: float | None
    seconds: float

    @property
    def text(self) -> str:
        """The bandwidth as text."""
        return "unshaped" if self.mbit is None else f"{self.mbit:g} Mbit/s"


SCRIPT = (Phase(None, 12.0), Phase(200.0, 14.0), Phase(20.0, 20.0), Phase(200.0, 14.0))


@dataclass(frozen=True)
class Arm:
    """One run through the script, in which the tuner acts, or runs in shadow mode."""

    folder: str
    title: str
    tuned: bool


ARMS = (
    Arm("without", "no compression (tuner in shadow mode)", tuned=False),
    Arm("with", "with allreduce_tuner", tuned=True),
)
