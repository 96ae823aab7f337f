import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


def planned(folder: Path, path: str, *arguments: str) -> str:
    """Return the commands of ``make test`` with ``path`` as PATH."""
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    result = subprocess.run(
        ["make", "--dry-run", "test", *arguments],
        cwd=folder,
        env={"PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout


@pytest.fixture
def with_gpu(tmp_path):
    """A PATH with an nvidia-smi that finds a GPU."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H200'\n")
    (programs / "nvidia-smi").chmod(0o755)
    return f"{programs}:/usr/bin:/bin"


@pytest.fixture
def without_gpu(tmp_path):
    """A PATH with an nvidia-smi that finds no GPU."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    (programs / "nvidia-smi").chmod(0o755)
    return f"{programs}:/usr/bin:/bin"


def test_without_a_gpu_the_cpu_build_of_torch_is_installed(tmp_path, without_gpu):
    installs = set(re.findall(r'"(torch==[^"]+)"', planned(tmp_path, without_gpu)))
    assert installs == {f"torch=={pinned('torch')}+cpu"}


def test_with_a_gpu_the_default_build_of_torch_is_installed(tmp_path, with_gpu):
    installs = set(re.findall(r'"(torch==[^"]+)"', planned(tmp_path, with_gpu)))
    assert installs == {f"torch=={pinned('torch')}"}


def test_a_python_that_is_too_old_is_one_line(tmp_path):
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    result = subprocess.run(
        ["make", "test", "PYTHON="], cwd=tmp_path, capture_output=True, text=True
    )
    assert result.returncode != 0
    assert result.stderr.splitlines()[0].startswith("torchLoom needs Python 3.11 or newer")


def pinned(package: str) -> str:
    text = (ROOT / "constraints.txt").read_text()
    return re.search(rf"^{package}==(.+)$", text, flags=re.M)[1]


def test_every_constraint_is_a_pin_and_covers_our_dependencies():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==([0-9]+!)?[0-9][A-Za-z0-9.]*", pin) for pin in pins)
    names = {pin.partition("==")[0].lower().replace("_", "-") for pin in pins}
    project = (ROOT / "pyproject.toml").read_text()
    required = re.findall(r'^ *"([a-z0-9-]+)(?:\[\w+\])?>=', project, flags=re.M)
    assert set(required) <= names
