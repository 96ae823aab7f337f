"""The generated reference pages match the config and the commands."""

import importlib.util

import pytest

from tests.docs.pages import ROOT

SCRIPT = ROOT / ".ci" / "reference_pages.py"


def generated():
    spec = importlib.util.spec_from_file_location("reference_pages", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.pages()


@pytest.mark.parametrize("name", ["reference-config.md", "reference-cli.md"])
def test_a_generated_page_is_up_to_date(name):
    written = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert written == generated()[name], "run python .ci/reference_pages.py"


def test_every_key_of_the_config_has_a_meaning():
    page = generated()["reference-config.md"]
    assert [line for line in page.splitlines() if line.endswith("|  |")] == []
