import email.parser
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import torchloom_core

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built without network access."""
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT],
        check=True,
        capture_output=True,
    )
    (path,) = out.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


@pytest.fixture(scope="module")
def metadata(wheel):
    name = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    return email.parser.Parser().parsestr(wheel.read(name).decode())


def test_the_wheel_contains_only_our_four_packages(wheel):
    top_level = {name.partition("/")[0] for name in wheel.namelist()}
    assert top_level == {
        "torchloom_core",
        "torchloom_policies",
        "torchloom_predictors",
        "torchloom_threadlet",
        f"torchloom-{torchloom_core.__version__}.dist-info",
    }


def test_the_wheel_contains_data_files(wheel):
    names = wheel.namelist()
    assert "torchloom_core/config/template.toml" in names
    assert "torchloom_core/cli/templates/policy/pyproject.toml" in names
    for page in (
        "index.html",
        "dashboard.js",
        "dashboard.css",
        "surface.js",
        "vendor/uPlot.LICENSE",
        "vendor/plotly.LICENSE",
    ):
        assert f"torchloom_core/live/dashboard/page/{page}" in names
    for package in ("core", "policies", "predictors", "threadlet"):
        assert f"torchloom_{package}/py.typed" in names


def test_the_license_is_inside(wheel, metadata):
    assert metadata["License-Expression"] == "Apache-2.0"
    name = next(n for n in wheel.namelist() if n.endswith("/LICENSE"))
    assert wheel.read(name) == (ROOT / "LICENSE").read_bytes()


def test_the_version_is_the_same_everywhere(metadata):
    assert metadata["Version"] == torchloom_core.__version__


def test_the_base_has_few_dependencies(metadata):
    required = metadata.get_all("Requires-Dist")
    base = {line.split(">")[0].partition("[")[0] for line in required if "extra ==" not in line}
    assert base == {"msgspec", "nats-py", "pluggy", "xxhash"}
