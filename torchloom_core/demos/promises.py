"""What a demo must show, checked at its end."""

from collections.abc import Mapping

from rich.console import Console

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
