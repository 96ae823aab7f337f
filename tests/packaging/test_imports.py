import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_nobody_imports_whom_it_may_not():
    lint_imports = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([lint_imports, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
