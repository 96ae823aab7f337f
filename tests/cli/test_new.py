"""``torchloom new`` writes packages whose own tests pass."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from torchloom_core.cli import new_command
from torchloom_core.cli.new_command import new
from torchloom_core.floor.errors import ConfigError

KINDS = sorted(path.name for path in Path(new_command.__file__).with_name("templates").iterdir())


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.integration
@pytest.mark.slow
def test_the_tests_of_each_kind_of_package_pass():
    for kind in KINDS:
        new(kind, f"my_{kind}")
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    run("pip", "install", "-q", *offline, "--target", "site", "./my_capability")
    output = run("pytest", "-v", "-p", "no:cacheprovider", "--ignore", "site")
    assert all(f"my_{kind}/test_my_{kind}.py" in output for kind in KINDS), output


def run(module, *words):
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        env=os.environ | {"PYTHONPATH": str(Path("site").absolute())},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_a_package_has_its_own_name_and_its_entry_points(kind):
    new(kind, "hot_aisle")
    files = {
        str(path.relative_to("hot_aisle")): path.read_text()
        for path in Path("hot_aisle").rglob("*.*")
    }
    own = {"pyproject.toml", "test_hot_aisle.py"}
    parts = ("__init__", "answer", "command", "kind", "trainer")
    modules = {"torchloom_hot_aisle.py"}
    if kind == "capability":
        modules = {f"torchloom_hot_aisle/{part}.py" for part in parts}
    assert files.keys() == own | modules
    assert "xample" not in "".join(files.values())
    project = tomllib.loads(files["pyproject.toml"])["project"]
    assert project["name"] == "torchloom-hot-aisle"
    for group, points in project.get("entry-points", {}).items():
        module, _, attribute = points["hot_aisle"].partition(":")
        path = f"{module.replace('.', '/')}.py"
        if group == "torchloom.capabilities":
            path, attribute = f"{module}/__init__.py", "RequestHotAisle"
        assert re.search(
            rf"^(def |class |){attribute or 'torchloom_register'}\b", files[path], re.M
        )


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        ("polices", "mine", "need a kind of package, was 'polices'; did you mean policy?"),
        ("policy", "my-own", "need a name of a-z, 0-9 and _, a letter first, was 'my-own'"),
        ("capability", "migrate", "need a name that is not taken, was 'migrate'"),
        ("adapter", "class", "need a name that is not taken, was 'class'"),
        ("policy", "there", "there: need a new folder, was an existing one"),
    ],
)
def test_a_wrong_word_is_one_line_and_writes_nothing(kind, name, text):
    Path("there").mkdir()
    with pytest.raises(ConfigError) as refused:
        new(kind, name)
    assert str(refused.value) == text
    assert [*Path().rglob("*")] == [Path("there")]
