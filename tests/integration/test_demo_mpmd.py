"""The demo of programs split over workers: a pipeline and experts that lose workers."""

import json
from io import StringIO

import pytest
from rich.console import Console

from torchloom_core.demos.folder import PLOT, SUMMARY
from torchloom_core.demos.mpmd.play import play_mpmd
from torchloom_core.demos.stage import stage

pytestmark = [pytest.mark.integration, pytest.mark.long]


def test_a_pipeline_and_experts_go_on_without_the_killed_workers(tmp_path):
    with stage(tmp_path):
        report = play_mpmd(3, tmp_path, Console(file=StringIO(), width=200))
    assert all(report.promises().values())
    assert (tmp_path / PLOT).read_bytes().startswith(b"\x89PNG")
    answers = json.loads((tmp_path / SUMMARY).read_text())["experts"]
    assert "left out" in answers["left out"]["answer"]
    assert "memory" in answers["peer's memory"]["answer"]
