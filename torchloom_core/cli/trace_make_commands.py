"""``torchloom trace synthesize|bandwidth|from-trajectory``."""

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from torchloom_core.cli.interrupts import whole_or_not
from torchloom_core.cli.options import AsJson
from torchloom_core.cli.trace_view import tell
from torchloom_core.config.loading import convert, read_text, read_toml

Force = Annotated[bool, Parameter(negative="", show_default=False)]


def synthesize(
    out: Path,
    /,
    *,
    nodes: int | None = None,
    racks: int | None = None,
    days: float | None = None,
    seed: int | None = None,
    interval_s: float | None = None,
    parameters: Path | None = None,
    force: Force = False,
    json: AsJson = False,
) -> None:
    """Write a synthetic trace: the same parameters give the same bytes.

    Parameters
    ----------
    out
        The bundle to write, NAME.tltrace.
    nodes
        Nodes of eight GPUs each; 48 unless given.
    racks
        Racks; one for every 16 nodes unless given.
    days
        How long; 30 unless given.
    seed
        0 unless given.
    interval_s
        Between two samples of a node, seconds, 0: no telemetry; 60 unless given.
    parameters
        TOML file with these and all other parameters: rates, repair times, precursors, gaps.
    force
        Replace a bundle that is there already.
    """
    from torchloom_core.trace.synthetic.parameters import Parameters
    from torchloom_core.trace.synthetic.trace import synthesize as write

    given = {"nodes": nodes, "racks": racks, "days": days, "seed": seed, "interval_s": interval_s}
    table, text = _read(parameters) if parameters else ({}, "")
    table |= {name: value for name, value in given.items() if value is not None}
    chosen = convert(table, Parameters, str(parameters or "synthesize"), text=text)
    with whole_or_not(out):
        write(out, chosen, force=force)
    tell(out, json)


def bandwidth(
    out: Path,
    /,
    *,
    shape: Literal["steps", "sinus", "failing"] | None = None,
    mbit_per_s: Annotated[tuple[float, ...], Parameter(negative="", show_default=False)] = (),
    hold_s: float | None = None,
    duration_s: float | None = None,
    workers: int | None = None,
    seed: int | None = None,
    parameters: Path | None = None,
    force: Force = False,
    json: AsJson = False,
) -> None:
    """Write a trace of what the links of a few workers carry, for `torchloom evaluate`.

    Parameters
    ----------
    out
        The bundle to write, NAME.tltrace.
    shape
        steps: one level after the other; sinus: up and down between the largest and the least;
        failing: one link falls from the first level to the least, the others keep the first.
    mbit_per_s
        The levels, Mbit/s, may be repeated; 1000, 200, 50 and 1000 unless given.
    hold_s
        How long a level lasts, or half a swing, seconds; 60 unless given.
    duration_s
        How long the trace is, seconds; 240 unless given.
    workers
        4 unless given.
    seed
        0 unless given.
    parameters
        TOML file with these and all other parameters: jitter, unequal links, how often a value.
    force
        Replace a bundle that is there already.
    """
    from torchloom_core.trace.synthetic.bandwidth import BandwidthParameters, synthesize_bandwidth

    given = {
        "shape": shape,
        "mbit_per_s": [*mbit_per_s] or None,
        "hold_s": hold_s,
        "duration_s": duration_s,
        "workers": workers,
        "seed": seed,
    }
    table, text = _read(parameters) if parameters else ({}, "")
    table |= {name: value for name, value in given.items() if value is not None}
    chosen = convert(table, BandwidthParameters, str(parameters or "bandwidth"), text=text)
    with whole_or_not(out):
        synthesize_bandwidth(out, chosen, force=force)
    tell(out, json)


def from_trajectory(
    root: Path,
    out: Path,
    /,
    *,
    life: int | None = None,
    licence: str = "private",
    force: Force = False,
    json: AsJson = False,
) -> None:
    """Write one life of a Weaver as a trace: telemetry, faults, decisions, and every input.

    Parameters
    ----------
    root
        A run's trajectory, .torchloom/trajectory/RUN.
    out
        The bundle to write, NAME.tltrace.
    life
        Epoch of the life; the newest unless given.
    licence
        Who may use it; goes into the manifest.
    force
        Replace a bundle that is there already.
    """
    from torchloom_core.trace.recorded.from_trajectory import from_trajectory as write

    with whole_or_not(out):
        write(root, out, epoch=life, licence=licence, force=force)
    tell(out, json)


def _read(path: Path) -> tuple[dict[str, Any], str]:
    """Return the table in a TOML file, and its text."""
    text = read_text(path)
    return read_toml(text, str(path)), text
