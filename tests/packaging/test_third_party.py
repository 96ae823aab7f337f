"""A third-party package installs beside torchLoom, is discovered, and passes its tests."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

PACKAGE = Path(__file__).parents[2] / "experiments" / "third_party_policy"

FIND = """
import json
from torchloom_core.lab.activation.discovery import discover
print(json.dumps([
    [info.kind, info.package, info.version, info.problem, [name for name, *_ in info.options]]
    for info in discover() if info.name == "night_watch"
]))
"""


def run(*command, **kwargs):
    done = subprocess.run(command, capture_output=True, text=True, **kwargs)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Return environment variables with the package on the Python path."""
    target = tmp_path_factory.mktemp("site")
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "install", "-q", *offline, "--target", target, PACKAGE)
    paths = [str(target), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


@pytest.mark.long
def test_the_installed_policy_is_discovered_by_its_entry_point(installed, tmp_path):
    found = json.loads(run(sys.executable, "-c", FIND, env=installed, cwd=tmp_path))
    (policy,) = found
    kind, package, version, problem, options = policy
    assert (kind, package, version, problem) == ("policy", "torchloom-night-watch", "0.1.0", "")
    assert "limit_celsius" in options


def test_the_packages_tests_pass_against_the_installed_copy(installed, tmp_path):
    output = run(
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        PACKAGE / "tests",
        env=installed,
        cwd=tmp_path,
    )
    assert "12 passed" in output
