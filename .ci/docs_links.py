"""A hook of mkdocs: on the site, a link out of docs/ becomes the path of its target."""

import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"\[([^\]\n]+)\]\(\.\./([^)\s#]+)(#[^)\s]*)?\)")
_ROOT = Path(__file__).parents[1]


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Show the repository's path, which the site does not have, as code."""
    return _LINK.sub(_as_path, markdown)


def _as_path(link: re.Match[str]) -> str:
    text, path = link[1], link[2]
    if not (_ROOT / path).exists():
        raise FileNotFoundError(f"{path}: no such file in the repository")
    plain = text.strip("`")
    return f"`{path}`" if plain in path else f"{text} (`{path}`)"
