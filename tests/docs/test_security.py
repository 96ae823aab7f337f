"""The threat model names tests that exist, and the manual the rights that the server enforces."""

import re
from collections import Counter

from tests.docs.pages import PAGES, ROOT
from torchloom_core.wire.access import ACTS, ADMINISTERS, READS, VERBS_OF

TESTS = Counter(
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"(?m)^ *(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"))
)


def section(name, heading):
    """Return the table rows of a section, without their heads."""
    text = next(page for page in PAGES if page.name == name).read_text(encoding="utf-8")
    own = re.split(r"(?m)^## ", text.partition(f"\n## {heading}\n")[2])[0]
    tables = re.findall(r"(?m)^\|.*\n\|[-|: ]+\|\n((?:\|.*\n)+)", own)
    return [line.strip("| ").split(" | ") for table in tables for line in table.splitlines()]


def test_each_attack_of_the_threat_model_is_denied_by_a_test_that_exists():
    rows = section("security.md", "What is denied")
    assert len(rows) > 40
    for row in rows:
        names = re.findall(r"`(\w+)`", row[-1])
        assert names, row
        assert {name: TESTS[name] for name in names} == dict.fromkeys(names, 1)


def test_the_manual_lists_the_verbs_of_each_role():
    shown = {row[0].strip("`"): set(re.findall(r"`([\w.]+)`", row[1])) for row in ROLES}
    assert shown.keys() == VERBS_OF.keys()
    assert shown == {"viewer": READS, "operator": ACTS, "admin": ADMINISTERS}
    assert VERBS_OF == {
        "viewer": READS,
        "operator": READS | ACTS,
        "admin": READS | ACTS | ADMINISTERS,
    }


ROLES = section("weaver.md", "People")
