"""The scenario of a demo, the same in both acts: its groups, nodes and the failure."""

import math
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from torchloom_core.floor.files import write_whole

ECC_HEALTHY = 3.0
TEMPERATURE_CELSIUS = 61.0


@dataclass(frozen=True)
class Place:
    """A replica group and its node."""

    group: str
    node: str
    rack: str
    standby: bool = False


@dataclass(frozen=True)
class Training:
    """The training run of a demo; ``config`` is the Weaver's configuration, beside this module.

    If it ``has_lighthouse``, an acting Weaver runs one. ``heartbeat_s`` is the interval of the
    sidecars' heartbeats. A step takes ``step_ms`` at least:
    a small model would be too fast to watch. ``options`` are further options of the trainers.
    """

    config: str = "torchloom.toml"
    has_lighthouse: bool = True
    heartbeat_s: float = 0.5
    seed: int = 0
    steps: int = 400
    step_ms: float = 60.0
    places: tuple[Place, ...] = (
        Place("g0", "node-0", "rack-0"),
        Place("g1", "node-1", "rack-0"),
        Place("g2", "node-2", "rack-1"),
        Place("g3", "node-3", "rack-1", standby=True),
    )
    options: tuple[str, ...] = ()

    def config_text(self) -> str:
        """Return the text of the configuration."""
        return (files("torchloom_core.demos") / self.config).read_text(encoding="utf-8")


@dataclass(frozen=True)
class Scenario(Training):
    """A run in which a node or a replica group fails, called ``event`` in table and plot.

    From ``degrades_at_step`` the failing node shows errors; ``degrades_for_s`` later its processes
    are killed, or stopped as if the driver hung, if the scenario ``freezes``.
    """

    title: str = "A node fails: the same run, seed and kill, twice"
    plot_title: str = "A node shows ECC errors and fails: steps of a surviving replica group"
    event: str = "node-1 fails"
    freezes: bool = False
    degrades_at_step: int = 60
    degrades_for_s: float = 12.0
    failing: Place = Place("g1", "node-1", "rack-0")

    @property
    def survivors(self) -> tuple[str, ...]:
        """The groups that train from the start and do not fail."""
        return tuple(p.group for p in self.places if not p.standby and p.node != self.failing.node)


NODE = Scenario()
"""A node's ECC errors rise until it fails; a standby replaces its group before that."""

HANG = Scenario(
    title="A replica group freezes: the same run, seed and SIGSTOP, twice",
    plot_title="A replica group freezes: steps of another group",
    event="g1 freezes",
    config="hang.toml",
    freezes=True,
    heartbeat_s=0.1,
    steps=320,
    degrades_for_s=3.0,
    places=NODE.places[:3],
)
"""A trainer is stopped within a step, and the other groups wait for it in a collective."""


def counters_after(degraded_s: float) -> dict[str, float]:
    """Return a node's counters ``degraded_s`` seconds after its first ECC error (0: it is healthy).

    Corrected ECC errors rise at a growing rate, as before an uncorrectable error, and the GPU
    temperature rises as well.
    """
    return {
        "gpu_ecc_corrected_total": ECC_HEALTHY + math.floor(2.5 * degraded_s**2),
        "gpu_temp_celsius": TEMPERATURE_CELSIUS + 1.2 * degraded_s,
    }


def write_counters(path: Path, counters: dict[str, float]) -> None:
    """Write counters as a Prometheus text file, atomically, as for node_exporter."""
    text = "".join(f"# TYPE {name} gauge\n{name} {value:g}\n" for name, value in counters.items())
    write_whole(path, text.encode())
