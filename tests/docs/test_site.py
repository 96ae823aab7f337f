"""The manual builds as a site without a warning: every link and anchor exists."""

import os
import subprocess
import sys

import pytest

from tests.docs.pages import ROOT


@pytest.mark.integration
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(
        build, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "site" / "search" / "search_index.json").exists()
