"""What happens in a demo, the same in both acts: who trains where, who dies, who freezes."""

import math
from dataclasses import dataclass
from pathlib import Path

ECC_HEALTHY = 3.0
TEMPERATURE_CELSIUS = 61.0


@dataclass(frozen=True)
class Place:
    """One replica group and the node it sits on."""

    group: str
    node: str
    rack: str
    standby: bool = False


@dataclass(frozen=True)
class Training:
    """The run that is trained.

    Attributes
    ----------
    config : str
        The Weaver's configuration, beside this module.
    heartbeat_s : float
        How often sidecars report.
    steps : int
        Steps of the run.
    step_ms : float
        Least duration of a step; a small model on a CPU would be too quick to watch.
    places : tuple of Place
        Who trains where.
    options : tuple of str
        More of the trainers'.
    """

    config: str = "torchloom.toml"
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


@dataclass(frozen=True)
class Scenario(Training):
    """A run of which a node is lost, or a peer.

    Attributes
    ----------
    title, plot_title, event : str
        What it shows, and what happens, for people.
    freezes : bool
        Whether the sick node's trainer is stopped, as by a driver that hangs, and not killed.
    ill_at_step : int
        Step after which the sick node's counters begin to degrade, if they do.
    ill_for_s : float
        Seconds from there until the node's processes are killed, or stopped.
    """

    title: str = "One node lost: the same run, seed and kill, twice"
    plot_title: str = "One node falls ill and dies: steps of a surviving replica group"
    event: str = "node-1 dies"
    freezes: bool = False
    ill_at_step: int = 60
    ill_for_s: float = 12.0
    sick: Place = Place("g1", "node-1", "rack-0")

    @property
    def survivors(self) -> tuple[str, ...]:
        """The groups that train from the start and keep their node."""
        return tuple(p.group for p in self.places if not p.standby and p.node != self.sick.node)


NODE = Scenario()
"""A node's ECC errors pile up, then it dies; a standby takes its place before."""

HANG = Scenario(
    title="One peer frozen: the same run, seed and SIGSTOP, twice",
    plot_title="One replica group freezes: steps of another",
    event="g1 freezes",
    config="hang.toml",
    freezes=True,
    heartbeat_s=0.1,
    steps=320,
    ill_for_s=3.0,
    places=NODE.places[:3],
)
"""A trainer is stopped in the middle of a step, and the others wait for it in a collective."""


def symptoms(ill_s: float) -> dict[str, float]:
    """Return a node's counters ``ill_s`` seconds after its first symptom (0: it is healthy).

    Corrected ECC errors pile up at a growing rate, as they do before an uncorrectable one, and
    the GPU runs hotter as it retries.
    """
    return {
        "gpu_ecc_corrected_total": ECC_HEALTHY + math.floor(2.5 * ill_s**2),
        "gpu_temp_celsius": TEMPERATURE_CELSIUS + 1.2 * ill_s,
    }


def write_counters(path: Path, counters: dict[str, float]) -> None:
    """Write counters as a Prometheus text file, in one piece, as node_exporter wants it."""
    text = "".join(f"# TYPE {name} gauge\n{name} {value:g}\n" for name, value in counters.items())
    scratch = path.with_suffix(".tmp")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)
