"""A torchLoom importer: ``torchloom trace import example``."""

import csv
from pathlib import Path

from torchloom_core.lab.trace import BundleWriter, Component, Event, TraceError

SECOND_NS = 10**9


def import_example(source: Path, out: Path, *, name: str = "", force: bool = False) -> None:
    """Import a table of faults with the columns time_s, node and fault.

    Parameters
    ----------
    source : Path
        CSV file with a row per fault.
    out : Path
        Bundle to write, NAME.tltrace.
    name : str
        Name of the trace. Default: the name of OUT.

    Raises
    ------
    TraceError
        If a row has no time, or there is no row.
    """
    events = []
    with source.open(newline="", encoding="utf-8") as file:
        for number, row in enumerate(csv.DictReader(file), start=2):
            try:
                t_ns = int(float(row["time_s"]) * SECOND_NS)
                node, fault = row["node"], row["fault"]
            except (KeyError, TypeError, ValueError):
                raise TraceError(f"{source}:{number}: need time_s, node and fault") from None
            events.append(
                Event(id=f"row-{number}", t_event=t_ns, t_avail=t_ns, component=node, kind=fault)
            )
    if not events:
        raise TraceError(f"{source}: need a fault, was none")
    times_ns = [event.t_event for event in events]
    with BundleWriter(
        out,
        name=name or out.stem,
        start_ns=min(times_ns),
        end_ns=max(times_ns) + SECOND_NS,
        source=source.name,
        licence="not stated",
        synthetic=False,
        force=force,
    ) as bundle:
        for node in sorted({event.component for event in events}):
            bundle.add(Component(id=node, kind="node"))
        for event in events:
            bundle.add(event)
