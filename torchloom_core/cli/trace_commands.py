"""``torchloom trace validate|describe|import``."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from torchloom_core.cli.interrupts import whole_or_not
from torchloom_core.cli.options import AsJson
from torchloom_core.cli.output import console, print_json, warn
from torchloom_core.cli.progress import progress
from torchloom_core.cli.times import Duration
from torchloom_core.cli.trace_view import tables, tell
from torchloom_core.errors import TraceError
from torchloom_core.files import refuse_picture

Force = Annotated[
    bool, Parameter(negative="", show_default=False, help="Replace a bundle that is there already.")
]


def validate(bundle: Path, /, *, json: AsJson = False) -> int:
    """Find everything that is wrong with a bundle, a line each.

    Exit status 6 where anything is. Remarks are no faults.

    Parameters
    ----------
    bundle
        The folder NAME.tltrace.
    """
    from torchloom_core.trace.validation.validate import validate as find

    with progress() as told:
        found = find(bundle, lambda path, done, rows: told(path.name, done / rows, 1.0))
    if json:
        print_json(found)
    else:
        out = console()
        for fault in found.faults:
            out.print(fault, markup=False, soft_wrap=True)
        for remark in found.remarks:
            out.print(f"remark: {remark}", markup=False, soft_wrap=True)
        if not found.faults:
            out.print(f"{bundle}: no fault found", markup=False, soft_wrap=True)
    return TraceError.exit_code if found.faults else 0


def describe(
    bundle: Path,
    /,
    *,
    horizon: Duration | None = None,
    plot: Path | None = None,
    json: AsJson = False,
) -> None:
    """Show what is in a bundle: spans, counts, rates, repairs, gaps, prevalence.

    Parameters
    ----------
    bundle
        The folder NAME.tltrace.
    horizon
        Of one more prevalence beside those of 1 h, 1 d and 7 d: 36h, 14d.
    plot
        Draw the faults over time into this file, .png or .svg.
    """
    from torchloom_core.trace.bundle.bundle import Bundle
    from torchloom_core.trace.bundle.checksums import changed
    from torchloom_core.trace.describe.describe import describe as look

    if plot is not None:
        from torchloom_core.trace.describe.plot import draw_faults

        refuse_picture(plot, TraceError)
    opened = Bundle.open(bundle)
    if fault := next(changed(opened.path, opened.manifest.files), None):
        warn(f"{fault}; it is not what the bundle was written with")
    if opened.beyond:
        warn(opened.beyond)
    found = look(opened, horizon_s=horizon.total_seconds() if horizon else None)
    if plot is not None:
        draw_faults(opened, plot)
    if json:
        print_json(found)
        return
    out = console()
    for table in tables(found):
        out.print(table)
        out.print()
    if plot is not None:
        out.print(f"wrote {plot}", markup=False, soft_wrap=True)


def import_csv(
    events: Path,
    out: Path,
    /,
    *,
    map: Path | None = None,
    name: str = "",
    source: str = "",
    licence: str = "",
    force: Force = False,
    json: AsJson = False,
) -> None:
    """Make a bundle of a CSV file with the columns time, component and kind.

    Also resolved and every other column of events.jsonl is taken by its name; columns that a
    bundle does not know are kept.

    Parameters
    ----------
    events
        The CSV file, a row an event.
    out
        The bundle to write, NAME.tltrace.
    map
        TOML file: other names of columns, how times are written, a topology, telemetry.
    name
        What the trace is called; as OUT unless given, here or in the mapping.
    source
        Where it is from; the name of the file unless given.
    licence
        Under what terms.
    """
    from torchloom_core.trace.importers.csv_trace import import_csv as write

    with whole_or_not(out):
        write(events, out, mapping=map, name=name, source=source, licence=licence, force=force)
    tell(out, json)


def import_infinitehbd(
    folder: Path, out: Path, /, *, name: str = "", force: Force = False, json: AsJson = False
) -> None:
    """Make a bundle of InfiniteHBD-Trace: faults of 400 GPU servers.

    Parameters
    ----------
    folder
        Where fault_events.csv is.
    out
        The bundle to write, NAME.tltrace.
    name
        What the trace is called; as OUT unless given.
    """
    from torchloom_core.trace.importers.infinitehbd import import_infinitehbd as write

    with whole_or_not(out):
        write(folder, out, name=name, force=force)
    tell(out, json)


def import_backblaze(
    folder: Path, out: Path, /, *, name: str = "", force: Force = False, json: AsJson = False
) -> None:
    """Make a bundle of Backblaze Hard Drive Data: daily SMART values, and which drives failed.

    Parameters
    ----------
    folder
        Where the Parquet files are.
    out
        The bundle to write, NAME.tltrace.
    name
        What the trace is called; as OUT unless given.
    """
    from torchloom_core.trace.importers.backblaze import import_backblaze as write

    with whole_or_not(out):
        write(folder, out, name=name, force=force)
    tell(out, json)
