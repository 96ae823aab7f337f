"""``torchloom trace synthesize|from-trajectory``."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

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
    write(out, chosen, force=force)
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

    write(root, out, epoch=life, licence=licence, force=force)
    tell(out, json)


def _read(path: Path) -> tuple[dict[str, Any], str]:
    """Return the table in a TOML file, and its text."""
    text = read_text(path)
    return read_toml(text, str(path)), text
