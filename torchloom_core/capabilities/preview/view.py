"""A preview as a table."""

from rich.table import Table
from rich.text import Text

from torchloom_core.floor.plain_text import plain_line
from torchloom_core.live.trajectory.preview import Preview


def table(seen: Preview) -> Table:
    """Return the results, one sentence per row."""
    title = f"preview on {seen.worker or 'no worker'}, against a control without the change"
    rows = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    rows.add_column(style="dim")
    rows.add_column()
    if seen.setup is not None and seen.setup.of_step >= 0:
        rows.add_row("from", f"step {seen.setup.of_step} of the run")
    for name, text in seen.words():
        rows.add_row(name, Text(plain_line(text, len(text))))
    return rows
