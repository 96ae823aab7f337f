"""Headings, CLI help and the dashboard use the terms of the glossary, no earlier names."""

import re
from pathlib import Path

import pytest

from torchloom_core.cli.app import app

ROOT = Path(__file__).parents[2]
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGE = sorted((ROOT / "torchloom_core" / "live" / "dashboard" / "page").glob("*.*"))
EARLIER = re.compile(
    r"\b(control room|stand-bys?|deeds?|errands?|wheel|seats?|knock|remarks?|complaints?|hindcasts?"
    r"|foretelling|calm past|usual time|rails|command life|pause hold)\b",
    re.IGNORECASE,
)


def headings(text: str) -> list[str]:
    """Return the headings of a page, without code blocks."""
    return re.findall(r"^#+ .*$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)


def test_no_heading_has_an_earlier_name():
    own = [path for path in DOCS if path.name != "glossary.md"]
    found = {path.name: EARLIER.findall("\n".join(headings(path.read_text()))) for path in own}
    assert {name: terms for name, terms in found.items() if terms} == {}


@pytest.mark.parametrize("name", [name for name in app if not name.startswith("-")])
def test_no_help_has_an_earlier_name(name, capsys):
    app([name, "--help"], exit_on_error=False, result_action="return_value")
    assert EARLIER.findall(capsys.readouterr().out) == []


def test_no_label_of_the_dashboard_has_an_earlier_name():
    labels = [
        text
        for path in PAGE
        if path.suffix in {".js", ".html"}
        for text in re.findall(r'"[^"\n]*"|`[^`]*`|>[^<>\n]+<', path.read_text())
    ]
    assert EARLIER.findall("\n".join(labels)) == []


def test_each_term_is_listed_once_with_its_home():
    text = (ROOT / "docs" / "glossary.md").read_text().partition("## Earlier names")[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    terms = [row[0].strip() for row in rows if row[0].strip() != "term"]
    assert len(terms) == len(set(terms)) > 50
    assert all(len(row) == 3 and all(cell.strip() for cell in row) for row in rows)


GONE = {
    *(
        "errand",
        "errands",
        "deed",
        "deeds",
        "hindcast",
        "hindcasts",
        "foretelling",
        "knock",
        "seat",
    ),
    *("tallies", "wish", "told", "whoever", "complaints", "door"),
}
SOURCES = ("torchloom_core", "threadlet", "policies", "predictors", "experiments", "docs")
TRANSLATE = {"earlier_names.py", "glossary.md"}


def test_no_source_has_an_earlier_name():
    found = {
        str(path.relative_to(ROOT)): words
        for folder in SOURCES
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".js", ".css", ".html", ".md", ".toml"}
        and "vendor" not in path.parts
        and path.name not in TRANSLATE
        and (words := GONE & set(re.findall(r"[a-z]+", path.read_text().lower())))
    }
    assert found == {}
