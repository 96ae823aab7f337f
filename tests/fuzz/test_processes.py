"""A bounded part of experiments/fuzz: a real Weaver, a real sidecar and a link outlive it all."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / "experiments" / "fuzz" / "run.py"
COUNTS = {"weaver": 1500, "sidecar": 400, "link": 400, "files": 0}


@pytest.mark.integration
def test_nothing_dies_hangs_or_prints_a_traceback(tmp_path):
    found = tmp_path / "found.json"
    counts = ["--messages", "1500", "--frames", "400", "--files", "0", "--seed", "1"]
    result = subprocess.run(
        [sys.executable, RUN, *counts, "--json", found, "--keep", tmp_path / "kept"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    sent = {part["part"]: part["sent"] for part in json.loads(found.read_text())}
    assert sent == {name: count for name, count in COUNTS.items() if count}
