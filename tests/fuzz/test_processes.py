"""A bounded part of experiments/fuzz: a real Weaver, a real sidecar and a link outlive it all.

So do the commands that read tables, mappings and trace bundles.
"""

import json

import pytest

from tests.scripts import run_script


@pytest.mark.long
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
        "--files": counts.get("files", 0),
        "--traces": counts.get("traces", 0),
        "--json": found,
        "--keep": tmp_path / "kept",
    }
    run_script("fuzz/run.py", *(word for option in options.items() for word in option))
    sent = {part["part"]: part["sent"] for part in json.loads(found.read_text())}
    assert sent == counts
