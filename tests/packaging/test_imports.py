"""Import rules: packages in layers, and plugins by the public modules only."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FACES = {"torchloom_core.plugin", "torchloom_core.lab.learning", "torchloom_core.testing"}
PLUGINS = sorted(
    path
    for folder in ("policies", "predictors", "experiments/third_party_policy")
    for path in (ROOT / folder).rglob("*.py")
)


@pytest.mark.integration
def test_imports_follow_the_layers():
    lint_imports = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([lint_imports, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_no_import_is_exempt_from_the_rules():
    assert "ignore_imports" not in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", PLUGINS, ids=lambda path: path.stem)
def test_a_plugin_imports_public_modules_only(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    used = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    used |= {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    assert {name for name in used if name and name.startswith("torchloom_core")} <= FACES
