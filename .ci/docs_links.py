"""A hook of mkdocs: on the site, a link out of docs/ becomes the path of its target."""

import os
import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"\[([^\]\n]+)\]\((\.\./[^)\s#]+)(#[^)\s]*)?\)")
_ROOT = Path(__file__).parents[1]
_DOCS = _ROOT / "docs"


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Show the repository's path, which the site does not have, as code."""
    folder = (_DOCS / page.file.src_uri).parent

    def shown(link: re.Match[str]) -> str:
        text = link[1]
        target = Path(os.path.normpath(folder / link[2]))
        if target.is_relative_to(_DOCS):
            return link[0]
        path = target.relative_to(_ROOT).as_posix()
        if not target.exists():
            raise FileNotFoundError(f"{path}: no such file in the repository")
        plain = text.strip("`")
        return f"`{path}`" if plain in path else f"{text} (`{path}`)"

    return _LINK.sub(shown, markdown)
