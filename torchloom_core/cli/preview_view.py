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
    for name, text in seen.words():
        rows.add_row(name, Text(text))
    return rows
