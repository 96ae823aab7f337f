"""Third-party packages install beside torchLoom, are discovered, and pass their tests."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
PACKAGES = ("third_party_policy", "third_party_capability")

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
    """Return environment variables with the packages on the Python path."""
    target = tmp_path_factory.mktemp("site")
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    packages = [EXPERIMENTS / package for package in PACKAGES]
    run(sys.executable, "-m", "pip", "install", "-q", *offline, "--target", target, *packages)
    paths = [str(target), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


@pytest.mark.long
def test_the_installed_policy_is_discovered_by_its_entry_point(installed, tmp_path):
    found = json.loads(run(sys.executable, "-c", FIND, env=installed, cwd=tmp_path))
    (policy,) = found
    kind, package, version, problem, options = policy
    assert (kind, package, version, problem) == ("policy", "torchloom-night-watch", "0.1.0", "")
    assert "limit_celsius" in options


@pytest.mark.parametrize(
    ("tests", "count"),
    [
        ("third_party_policy/tests", 12),
        ("third_party_capability/tests/test_flush.py", 31),
        pytest.param(
            "third_party_capability/tests/test_in_a_run.py", 2, marks=pytest.mark.long, id="run"
        ),
    ],
)
def test_a_packages_tests_pass_against_the_installed_copy(tests, count, installed, tmp_path):
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", EXPERIMENTS / tests)
    output = run(*command, env=installed, cwd=tmp_path)
    assert re.search(rf"\b{count} passed", output), output
