"""A bounded part of experiments/fuzz: a real Weaver, a real sidecar and a link outlive it all.

So do the commands that read tables, mappings and trace bundles.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / "experiments" / "fuzz" / "run.py"


@pytest.mark.integration
@pytest.mark.parametrize(
    "counts",
    [
        pytest.param({"weaver": 1500, "sidecar": 400, "link": 400}, id="processes"),
        pytest.param({"traces": 15}, id="traces", marks=pytest.mark.slow),
    ],
)
def test_nothing_dies_hangs_or_prints_a_traceback(tmp_path, counts):
    found = tmp_path / "found.json"
    options = {
        "--messages": counts.get("weaver", 0),
        "--frames": counts.get("sidecar", 0),
        "--files": 0,
        "--traces": counts.get("traces", 0),
        "--seed": 1,
    }
    words = [str(word) for option in options.items() for word in option]
    result = subprocess.run(
        [sys.executable, RUN, *words, "--json", found, "--keep", tmp_path / "kept"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    sent = {part["part"]: part["sent"] for part in json.loads(found.read_text())}
    assert sent == counts
