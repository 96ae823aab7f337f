"""What a demo is to show, and whether it came so."""

from collections.abc import Mapping

from rich.console import Console

from torchloom_core.errors import StateError

Promises = Mapping[str, bool]
"""Each in words, and whether it held."""


def show_promises(console: Console, promises: Promises) -> None:
    """Print what held and what did not."""
    for promise, held in promises.items():
        console.print(
            f"{'[green]held[/]  ' if held else '[red]broken[/]'} {promise}", highlight=False
        )


def check_promises(promises: Promises) -> None:
    """Raise StateError if anything does not hold that the demo is to show."""
    broken = [promise for promise, held in promises.items() if not held]
    if broken:
        raise StateError(f"the demo did not hold: {'; '.join(broken)}")
