"""A preview as a table for people."""

from rich.table import Table
from rich.text import Text

from torchloom_core.trajectory.preview import Preview


def table(seen: Preview) -> Table:
    """Return what was found, a row a sentence."""
    title = f"a change tried out on {seen.worker or 'nobody'}, beside a control without it"
    rows = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    rows.add_column(style="dim")
    rows.add_column()
    if seen.setup is not None and seen.setup.of_step >= 0:
        rows.add_row("from", f"step {seen.setup.of_step} of the run")
    for name, text in seen.words():
        rows.add_row(name, Text(text))
    return rows
