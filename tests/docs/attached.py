"""Apply the diffs of the manual to scripts like the frameworks' own examples."""

from pathlib import Path

from tests.docs.pages import PAGES, blocks

SCRIPTS = Path(__file__).parents[1] / "attached_scripts"
NAMES = sorted(
    block.note.removeprefix("attaches: ")
    for page in PAGES
    for block in blocks(page, "diff")
    if block.note.startswith("attaches: ")
)


def attached(name):
    """Return script ``name`` with the diff of the manual, and the added lines."""
    diffs = (block for page in PAGES for block in blocks(page, "diff"))
    (block,) = (block for block in diffs if block.note == f"attaches: {name}")
    script = (SCRIPTS / name).read_text(encoding="utf-8")
    added = []
    for hunk in block.text.split("@@ ")[1:]:
        lines = hunk.rstrip().splitlines()[1:]
        before = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("+"))
        after = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("-"))
        assert script.count(before) == 1, f"{block.place}: need lines of {name}, was\n{before}"
        script = script.replace(before, after)
        added += [line[1:] for line in lines if line.startswith("+")]
    return script, added
