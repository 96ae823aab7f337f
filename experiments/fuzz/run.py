"""Fuzz a real Weaver, a real sidecar, the link, and the commands that read files."""

import argparse
import asyncio
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from against_files import fuzz_files
from against_frames import fuzz_link, fuzz_sidecar
from against_traces import fuzz_traces
from against_weaver import fuzz_weaver
from found import Found, Show
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

_LONGEST_FAULT = 200


def main() -> int:
    """Run the requested parts; return 1 if there is any finding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000, help="to the Weaver")
    parser.add_argument("--frames", type=int, default=5_000, help="to the sidecar, and to the link")
    parser.add_argument("--files", type=int, default=3_000)
    parser.add_argument("--traces", type=int, default=2_000, help="tables, mappings and bundles")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write what was found here, too")
    parser.add_argument("--keep", type=Path, help="a folder that is not removed")
    options = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    found: list[Found] = []
    with (
        tempfile.TemporaryDirectory() as temporary,
        Progress(*columns, TimeRemainingColumn(), console=console) as progress,
    ):
        folder = options.keep or Path(temporary)

        def part(name: str, count: int, work: Callable[[Path, int, int, Show], Found]) -> None:
            if count:
                task = progress.add_task(name, total=count)
                place = folder / name
                place.mkdir(parents=True)

                def show(done: int) -> None:
                    progress.update(task, completed=done)

                found.append(work(place, count, options.seed, show))
                show(count)

        part("weaver", options.messages, lambda *given: asyncio.run(fuzz_weaver(*given)))
        part("sidecar", options.frames, fuzz_sidecar)
        part("link", options.frames, fuzz_link)
        part("files", options.files, fuzz_files)
        part("traces", options.traces, fuzz_traces)
    _show(found, options.seed)
    if options.json:
        options.json.write_text(json.dumps([vars(part) for part in found], indent=1) + "\n")
    return int(any(part.bad for part in found))


def _show(found: list[Found], seed: int) -> None:
    table = Table("part", "sent", "deaths", "hangs", "tracebacks", "measured")
    for part in found:
        measured = ", ".join(f"{name} {value:g}" for name, value in part.numbers.items())
        counts = map(str, (part.sent, part.deaths, part.hangs, part.tracebacks))
        table.add_row(part.part, *counts, measured)
    console = Console()
    console.print(f"seed {seed}")
    console.print(table)
    for part in found:
        for fault in part.faults:
            console.print(f"{part.part}: {fault[:_LONGEST_FAULT]}", markup=False)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # A command that hung may have left a thread behind.
    os._exit(status)
