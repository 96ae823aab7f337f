"""``torchloom new`` writes packages whose own tests pass."""

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
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert all(f"my_{kind}/test_my_{kind}.py" in done.stdout for kind in KINDS), done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_a_package_has_its_own_name_and_an_entry_point(kind):
    new(kind, "hot_aisle")
    files = {path.name: path.read_text() for path in Path("hot_aisle").iterdir()}
    assert sorted(files) == ["pyproject.toml", "test_hot_aisle.py", "torchloom_hot_aisle.py"]
    assert "xample" not in "".join(files.values())
    project = tomllib.loads(files["pyproject.toml"])["project"]
    assert project["name"] == "torchloom-hot-aisle"
    ((group, points),) = project["entry-points"].items()
    assert group in ("torchloom", f"torchloom.{kind}s")
    module, _, attribute = points["hot_aisle"].partition(":")
    assert f"def {attribute or 'torchloom_register'}(" in files[f"{module}.py"]


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        ("polices", "mine", "need a kind of plugin, was 'polices'; did you mean policy?"),
        ("policy", "my-own", "need a name of a-z, 0-9 and _, a letter first, was 'my-own'"),
        ("policy", "there", "there: need a new folder, was an existing one"),
    ],
)
def test_a_wrong_word_is_one_line_and_writes_nothing(kind, name, text):
    Path("there").mkdir()
    with pytest.raises(ConfigError) as refused:
        new(kind, name)
    assert str(refused.value) == text
    assert [*Path().rglob("*")] == [Path("there")]
