"""The end of a demo: whether it showed what it must, and where the results are."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from torchloom_core.demos.folder import PLOT, SUMMARY
from torchloom_core.floor.errors import StateError

Promises = Mapping[str, bool]
"""Statement to whether it was true in this run."""


def show_promises(console: Console, promises: Promises) -> None:
    """Print each statement with pass or FAIL."""
    for promise, passed in promises.items():
        result = "[green]pass[/]" if passed else "[red]FAIL[/]"
        console.print(f"{result} {promise}", highlight=False)


def check_promises(promises: Promises) -> None:
    """Raise StateError if a statement was false in this run."""
    failed = [promise for promise, passed in promises.items() if not passed]
    if failed:
        raise StateError(f"the demo failed: {'; '.join(failed)}")


def write_summary(folder: Path, summary: Mapping[str, Any]) -> None:
    """Write the results as JSON."""
    text = json.dumps(summary, indent=2) + "\n"
    (folder / SUMMARY).write_text(text, encoding="utf-8")


def show_files(console: Console, folder: Path, *trajectories: Path) -> None:
    """Print the paths of the trajectories, the plot and the summary."""
    for trajectory in trajectories:
        console.print(f"trajectory  {trajectory}")
    console.print(f"plot        {folder / PLOT}")
    console.print(f"summary     {folder / SUMMARY}")
