"""The runs among kills and freezes, shortened: nothing comes of it that torchLoom has caused."""

import json

import pytest

from tests.scripts import run_script

pytestmark = [pytest.mark.integration, pytest.mark.long]
SEED = 24
"""Of a short script with a kill and a freeze of a trainer."""


def test_twelve_kills_of_everything_lose_double_and_break_nothing(tmp_path):
    words = ("--kills", 12, "--seed", 106, "--out", tmp_path, "--results", tmp_path)
    run_script("chaos/run.py", *words)
    total = json.loads((tmp_path / "results.json").read_text())["total"]
    assert total["kills"] + total.get("omitted", 0) >= 12
    assert total["commands applied"] > 0
    assert (tmp_path / "chaos.png").stat().st_size > 0


def test_six_kills_on_three_hosts_with_standbys_and_tls_lose_double_and_break_nothing(tmp_path):
    words = ("--kills", 6, "--seed", 107, "--standbys", "--out", tmp_path, "--results", tmp_path)
    run_script("chaos/run.py", *words)
    total = json.loads((tmp_path / "standbys.json").read_text())["total"]
    assert total["kills"] + total.get("omitted", 0) >= 6
    assert total["commands applied"] > 0


def test_changes_among_kills_and_freezes_land_on_all_ranks_or_nowhere(tmp_path):
    words = ("--changes", 5, "--seed", SEED, "--out", tmp_path, "--results", tmp_path)
    run_script("fence_soak/run.py", *words)
    counts = json.loads((tmp_path / f"ddp-{SEED}.json").read_text())["counts"]
    assert counts["changes granted"] == 5
    assert counts["changes done"] > 0
    assert counts["values of a step compared"] > 0
    assert counts["kill trainer"] > 0
