"""Tables that summarize a trace bundle."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from torchloom_core.cli.output import console, print_json, span
from torchloom_core.floor.clock import SECOND_NS

# It imports statsmodels, which `torchloom --help` should not wait for.
if TYPE_CHECKING:
    from torchloom_core.lab.trace.describe.describe import Description

_LISTED = 12


def tables(found: "Description") -> Iterator[RenderableType]:
    """Yield the tables, the most general first."""
    yield _head(found)
    yield _failures(found)
    yield _events(found)
    if found.telemetry:
        yield _telemetry(found)


def print_bundle(out: Path, json: bool) -> None:
    """Print the files of a bundle that was just written."""
    from torchloom_core.lab.trace.bundle.bundle import Bundle

    manifest = Bundle.open(out).manifest
    if json:
        print_json(manifest)
        return
    for file, entry in manifest.files.items():
        console().print(f"{out / file}: {entry.rows} rows", markup=False, soft_wrap=True)


def _head(found: "Description") -> Table:
    table = _pairs(found.name + (" (synthetic)" if found.synthetic else ""))
    _row(table, "span", f"{_day(found.start_ns)} to {_day(found.end_ns)}, {found.days:g} days")
    for kind, seen in found.exposure.items():
        _row(table, kind, f"{seen.components}, {_days(seen.component_days)} {kind}-days")
    _row(table, "source", f"{found.source}; {found.licence}")
    return table


def _days(days: float) -> str:
    return f"{days:.3g}" if days < 10 else f"{days:.0f}"


def _failures(found: "Description") -> Table:
    kind = next(iter(found.watched))
    rate, repairs = found.rate, found.repairs
    table = _pairs("failures")
    _row(table, "fatal events", f"{found.fatal} of {found.events}")
    _row(
        table,
        f"rate per {kind}-day",
        f"{rate.per_day:.3g} [{rate.low:.3g}, {rate.high:.3g}], exact Poisson 95 %, "
        f"{rate.failures} in {_days(rate.component_days)} {kind}-days",
    )
    if found.silent:
        _row(table, "long silent", f"{found.silent} of {found.watched[kind]}, not judged")
    _row(table, "fleet MTBF", span(found.mtbf_s))
    if repairs.quantiles_s:
        low, median, high = (span(value) for value in repairs.quantiles_s)
        _row(table, "repair", f"median {median}, 80 % within {low} to {high}")
    _row(table, "repair time unknown", str(repairs.unresolved))
    for horizon, share in found.prevalence.items():
        _row(table, f"prevalence, {horizon}", "-" if share is None else f"{share:.3g}")
    follows = ", ".join(f"{name} {share:.0%}" for name, share in found.follows.items())
    _row(table, "follows", follows or "-")
    return table


def _events(found: "Description") -> Table:
    table = _table("events", "kind", "events")
    _count(table, found.kinds)
    for cause, count in found.causes.items():
        if cause:
            _row(table, f"(caused by {cause})", str(count))
    return table


def _count(table: Table, counts: Mapping[str, int]) -> None:
    for name, count in list(counts.items())[:_LISTED]:
        _row(table, name, str(count))
    if rest := list(counts.values())[_LISTED:]:
        _row(table, f"{len(rest)} more kinds", str(sum(rest)))


def _telemetry(found: "Description") -> Table:
    kinds = ("metric", "components", "samples", "invalid", "interval", "missing", "longest gap")
    table = _table("telemetry", *kinds)
    for metric, sampled in found.telemetry.items():
        _row(
            table,
            metric,
            str(sampled.components),
            str(sampled.samples),
            f"{sampled.invalid / sampled.samples:.2%}",
            span(sampled.interval_s),
            "-" if sampled.missing is None else f"{sampled.missing:.2%}",
            span(sampled.longest_gap_s),
        )
    return table


def _pairs(title: str) -> Table:
    return Table(
        title=Text(title), title_justify="left", box=None, show_header=False, pad_edge=False
    )


def _table(title: str, first: str, *numbers: str) -> Table:
    table = Table(title=Text(title), title_justify="left", box=None, pad_edge=False)
    table.add_column(first)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _row(table: Table, *cells: str) -> None:
    """Add a row of untrusted text, without markup."""
    table.add_row(*map(Text, cells))


def _day(ts_ns: int) -> str:
    return f"{datetime.fromtimestamp(ts_ns / SECOND_NS, UTC):%Y-%m-%d %H:%M}"
