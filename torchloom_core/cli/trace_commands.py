"""``torchloom trace validate|describe``."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from torchloom_core.cli.options import AsJson
from torchloom_core.cli.output import console, print_json, warn
from torchloom_core.cli.progress import progress
from torchloom_core.cli.times import Duration
from torchloom_core.cli.trace_view import tables
from torchloom_core.floor.errors import TraceError
from torchloom_core.floor.files import refuse_picture

_Bundle = Annotated[Path, Parameter(help="Bundle to read, NAME.tltrace.")]


def validate(bundle: _Bundle, /, *, json: AsJson = False) -> int:
    """Check a bundle and print each error on a line.

    Exit status 6 if there is an error; warnings do not count.
    """
    from torchloom_core.lab.trace.validation.validate import validate as run_validation

    with progress() as progress_of:
        found = run_validation(
            bundle, lambda path, done, rows: progress_of(path.name, done / rows, 1.0)
        )
    if json:
        print_json(found)
    else:
        out = console()
        for fault in found.faults:
            out.print(fault, markup=False, soft_wrap=True)
        for warning in found.warnings:
            out.print(f"warning: {warning}", markup=False, soft_wrap=True)
        if not found.faults:
            out.print(f"{bundle}: no errors", markup=False, soft_wrap=True)
    return TraceError.exit_code if found.faults else 0


def describe(
    bundle: _Bundle,
    /,
    *,
    horizon: Duration | None = None,
    plot: Path | None = None,
    json: AsJson = False,
) -> None:
    """Summarize a bundle: time span, failure rates, repair times, gaps, prevalence.

    Parameters
    ----------
    horizon
        Horizon of an additional prevalence, such as 36h or 14d; 1 h, 1 d and 7 d are always shown.
    plot
        Save a plot of the faults over time to this file, .png or .svg.
    """
    from torchloom_core.lab.trace.bundle.bundle import Bundle
    from torchloom_core.lab.trace.bundle.checksums import changed
    from torchloom_core.lab.trace.describe.describe import describe as summarize

    if plot is not None:
        from torchloom_core.lab.trace.describe.plot import draw_faults

        refuse_picture(plot, TraceError)
    opened = Bundle.open(bundle)
    if fault := next(changed(opened.path, opened.manifest.files), None):
        warn(f"{fault}; the file changed after the bundle was written")
    if opened.beyond:
        warn(opened.beyond)
    found = summarize(opened, horizon_s=horizon.total_seconds() if horizon else None)
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
