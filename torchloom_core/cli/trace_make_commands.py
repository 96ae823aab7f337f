"""``torchloom trace synthesize|bandwidth|from-trajectory``."""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from cyclopts import Parameter
from msgspec import Struct

from torchloom_core.cli.interrupts import reports_output
from torchloom_core.cli.options import AsJson
from torchloom_core.cli.trace_view import print_bundle
from torchloom_core.config.loading import convert, read_text, read_toml

T = TypeVar("T", bound=Struct)

_Out = Annotated[Path, Parameter(help="Bundle to write, NAME.tltrace.")]

Force = Annotated[
    bool, Parameter(negative="", show_default=False, help="Replace an existing bundle.")
]


def synthesize(
    out: _Out,
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
    """Generate a synthetic trace; the same parameters give the same bytes.

    Parameters
    ----------
    nodes
        Number of nodes with eight GPUs each. Default: 48.
    racks
        Number of racks. Default: one per 16 nodes.
    days
        Length of the trace, days. Default: 30.
    seed
        Random seed. Default: 0.
    interval_s
        Interval between two samples of a node, seconds; 0: no telemetry. Default: 60.
    parameters
        TOML file with these and further parameters: rates, repair times, precursors, gaps.
    """
    from torchloom_core.lab.trace.synthetic.parameters import Parameters
    from torchloom_core.lab.trace.synthetic.trace import synthesize as write

    given = {"nodes": nodes, "racks": racks, "days": days, "seed": seed, "interval_s": interval_s}
    chosen = _chosen(Parameters, "synthesize", parameters, given)
    with reports_output(out):
        write(out, chosen, force=force)
    print_bundle(out, json)


def bandwidth(
    out: _Out,
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
    """Generate a trace of the bandwidth of a few workers' links, for `torchloom evaluate`.

    Parameters
    ----------
    shape
        steps: one level after the other. sinus: a sine between the largest and the smallest level.
        failing: one link falls from the first level to the smallest, the others keep the first.
    mbit_per_s
        Bandwidth level, Mbit/s, may be repeated. Default: 1000, 200, 50, 1000.
    hold_s
        Duration of a level, or of half a sine period, seconds. Default: 60.
    duration_s
        Length of the trace, seconds. Default: 240.
    workers
        Number of workers. Default: 4.
    seed
        Random seed. Default: 0.
    parameters
        TOML file with these and further parameters: jitter, unequal links, sampling interval.
    """
    from torchloom_core.lab.trace.synthetic.trace import (
        BandwidthParameters,
        synthesize_bandwidth,
    )

    given = {
        "shape": shape,
        "mbit_per_s": [*mbit_per_s] or None,
        "hold_s": hold_s,
        "duration_s": duration_s,
        "workers": workers,
        "seed": seed,
    }
    chosen = _chosen(BandwidthParameters, "bandwidth", parameters, given)
    with reports_output(out):
        synthesize_bandwidth(out, chosen, force=force)
    print_bundle(out, json)


def from_trajectory(
    root: Path,
    out: _Out,
    /,
    *,
    epoch: int | None = None,
    licence: str = "private",
    force: Force = False,
    json: AsJson = False,
) -> None:
    """Convert the record of one Weaver process to a trace: telemetry, faults, decisions, inputs.

    Parameters
    ----------
    root
        Trajectory of a run, .torchloom/trajectory/RUN.
    epoch
        Epoch, the number of the Weaver process. Default: the newest.
    licence
        Licence to write into the manifest.
    """
    from torchloom_core.lab.trace.recorded.recorded import from_trajectory as write

    with reports_output(out):
        write(root, out, epoch=epoch, licence=licence, force=force)
    print_bundle(out, json)


def _chosen(cls: type[T], command: str, path: Path | None, given: dict[str, Any]) -> T:
    """Return the parameters in a TOML file, with the given options in place of its own."""
    text = read_text(path) if path else ""
    table = read_toml(text, str(path))
    table |= {name: value for name, value in given.items() if value is not None}
    return convert(table, cls, str(path or command), text=text)
