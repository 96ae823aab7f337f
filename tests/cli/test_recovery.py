"""``torchloom recovery``: the phases of each recovery, as text and as JSON."""

import json

import pytest

from tests.recorded_epoch import record_epoch
from tests.recorded_recovery import record_recovery
from torchloom_core.cli.recovery_command import recovery


@pytest.fixture
def recorded(tmp_path):
    record_recovery(tmp_path)
    return tmp_path


def test_a_recovery_over_two_weavers_is_printed_with_advice(recorded, capsys):
    recovery(recorded)
    printed = capsys.readouterr().out
    assert "g0: g0-0 was killed by SIGKILL after step 3" in printed
    assert "986.00 s  relaunch" in printed
    assert "1001.00 s  in total" in printed
    assert "trains now: g0 on node8; lost on node7" in printed
    assert "longest: relaunch; keep a warm standby" in printed


def test_the_phases_in_json_add_up_to_the_total(recorded, capsys):
    recovery(recorded, last=1, json=True)
    (one,) = json.loads(capsys.readouterr().out)
    assert list(one["phases"]) == ["detect", "relaunch", "import", "restore"]
    assert sum(one["phases"].values()) == pytest.approx(one["total_s"])


def test_a_rank_that_never_comes_back_is_not_over(tmp_path, capsys):
    record_epoch(tmp_path)
    recovery(tmp_path)
    assert "not over: in the phase relaunch at the end of the record" in capsys.readouterr().out
