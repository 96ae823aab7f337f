"""Parse README and manual: text, code blocks and code spans."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))

_FENCE = re.compile(r"```(\w*)$")
_NOTE = re.compile(r"<!-- (continues|not run: .+|file: \S+|source: \S+|attaches: \S+) -->$")
_SPAN = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Block:
    """A code block; ``note`` is the HTML comment above it."""

    page: Path
    line: int
    language: str
    text: str
    note: str

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def file(self) -> str:
        """The file name for the block, or an empty text."""
        return self.note.removeprefix("file: ") if self.note.startswith("file: ") else ""

    @property
    def source(self) -> str:
        """The file of the repository that the block shows, or an empty text."""
        return self.note.removeprefix("source: ") if self.note.startswith("source: ") else ""


def blocks(page, *languages):
    """Return the page's code blocks in these languages, in order."""
    return [block for block in _split(page)[0] if block.language in languages]


def spans(page):
    """Return the page's code spans, those of tables too."""
    return [span.replace("\\|", "|") for span in _SPAN.findall("\n".join(_split(page)[1]))]


def prose(page):
    """Return the page without its code blocks."""
    return "\n".join(_split(page)[1])


def manual():
    """Return all pages as one text."""
    return "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def _split(page):
    found, outside, inside = [], [], None
    note, start, language = "", 0, ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if inside is not None:
            if line == "```":
                found.append(Block(page, start, language, "\n".join(inside) + "\n", note))
                inside, note = None, ""
            else:
                inside.append(line)
        elif fence := _FENCE.match(line):
            inside, start, language = [], number, fence[1]
        else:
            outside.append(line)
            if line:
                mark = _NOTE.match(line)
                note = mark[1] if mark else ""
    assert inside is None, f"{page.name}:{start}: need an end of the code block"
    return found, outside


def headings(page):
    """Return the anchors of a page's headings."""
    found = re.findall(r"(?m)^#+ (.+)$", prose(page))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}
