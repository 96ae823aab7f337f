"""The generated reference pages match the config and the commands."""

import functools
import json
import subprocess
import sys

import pytest

from tests.docs.pages import ROOT

pytestmark = pytest.mark.integration
SCRIPT = ROOT / ".ci" / "reference_pages.py"


# In a process of its own: commands that tests have called have other usage lines.
GENERATE = """
import json, runpy, sys
from torchloom_core.cli.installed_commands import add_installed
add_installed(["trace", "import"])
add_installed([])
print(json.dumps(runpy.run_path(sys.argv[1])["pages"]()))
"""


@functools.cache
def generated():
    command = [sys.executable, "-c", GENERATE, str(SCRIPT)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("name", ["reference-config.md", "reference-cli.md"])
def test_a_generated_page_is_up_to_date(name):
    written = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert written == generated()[name], "run python .ci/reference_pages.py"


def test_every_key_of_the_config_has_a_meaning():
    page = generated()["reference-config.md"]
    assert [line for line in page.splitlines() if line.endswith("|  |")] == []
