"""Scripts with the lines that the pages put into torchft's own, which they are shaped like."""

from pathlib import Path

from tests.docs.pages import ROOT, blocks

SCRIPTS = Path(__file__).parents[1] / "attached_scripts"
PAGE_OF = {"train_ddp.py": ROOT / "README.md", "train_diloco.py": ROOT / "docs" / "threadlet.md"}


def attached(name):
    """Return script ``name`` as the pages attach it, and the lines that this takes."""
    (block,) = blocks(PAGE_OF[name], "diff")
    script = (SCRIPTS / name).read_text(encoding="utf-8")
    added = []
    for hunk in block.text.split("@@ ")[1:]:
        lines = hunk.rstrip().splitlines()[1:]
        before = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("+"))
        after = "".join(f"{line[1:]}\n" for line in lines)
        assert script.count(before) == 1, f"{block.place}: need lines of {name}, was\n{before}"
        script = script.replace(before, after)
        added += [line[1:] for line in lines if line.startswith("+")]
    return script, added
