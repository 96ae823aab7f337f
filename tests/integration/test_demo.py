"""The demo's second act, shortened: a node falls ill, and the run moves away before it dies."""

import asyncio
import json
import re
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from torchloom_core.cli.app import app
from torchloom_core.demos import report
from torchloom_core.demos.act import Act
from torchloom_core.demos.scenario import Scenario

pytestmark = [pytest.mark.integration, pytest.mark.long]

SCENARIO = replace(Scenario(), seed=7, steps=260, degrades_at_step=30)


@pytest.fixture(scope="module")
def act(tmp_path_factory):
    """The act, played to its end."""
    act = Act(SCENARIO, tmp_path_factory.mktemp("demo") / "with", acting=True)
    asyncio.run(act.play(lambda _: None))
    return act


def test_no_step_fails_and_no_number_is_missing(act):
    for group, log in act.logs.items():
        assert all(row["committed"] for row in log.steps), group
        steps = [row["step"] for row in log.steps]
        assert steps == list(range(steps[0], steps[0] + len(steps))), group
    measures = report.measures_of(act)
    assert (measures.failed_steps, measures.continuous) == (0, True)
    assert measures.steps == SCENARIO.steps


def test_all_groups_that_finish_have_the_same_weights_to_the_bit(act):
    ends = {group: log.end for group, log in act.logs.items()}
    assert ends["g1"]["drained"]
    finished = {group: end for group, end in ends.items() if not end["drained"]}
    assert finished.keys() == {"g0", "g2", "g3"}
    assert len({end["weights"] for end in finished.values()}) == 1


def test_the_migration_was_done_before_the_node_died(act):
    story = [e for e in report.story_of(act) if e["tag"] in {"verdict", "outcome"}]
    migrate = {"kind": "migrate", "group": "g1"}
    (verdict,) = [e for e in story if e["tag"] == "verdict" and e["action"] == migrate]
    assert verdict["granted"]
    (outcome,) = [e for e in story if e["tag"] == "outcome" and e["action"] == migrate]
    assert outcome["verdict"] == verdict["proposal"]
    assert (outcome["result"], outcome["detail"]) == ("done", "g3-0 joined, then g1 drained")
    assert act.degraded_at < verdict["t"] < outcome["t"] < act.failed_at
    (cordon,) = [e for e in story if e["tag"] == "outcome" and e["action"]["kind"] == "cordon"]
    assert cordon["action"]["node"] == act.scenario.failing.node


def test_the_text_of_an_alert_is_shown_once():
    action = {"kind": "alert", "worker": "g1-0", "text": "g1 may fail"}
    verdict = {"tag": "verdict", "policy": "p", "granted": True, "action": action}
    text = report.describe({**verdict, "reason": "g1 may fail"})
    assert text == "p: alert on g1-0: g1 may fail: granted"


def test_its_trajectory_is_decided_again_to_the_bit(act, capsys):
    root = act.processes.trajectory
    assert app(["trajectory", "replay", str(root), "--json"], result_action="return_value") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["difference"] is None
    assert report["verdicts"] > 0
    assert report["outputs"] > report["verdicts"]


def test_output_at_the_end_is_written(act, tmp_path):
    summary = report.summary_of_acts(act, act)
    report.draw(tmp_path / "demo.png", act, act)
    assert summary["with"]["failed_steps"] == 0
    assert any("g3-0 joined" in decision for decision in summary["decisions"])
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")

    shown = StringIO()
    report.show_table(Console(file=shown, width=120), act, act)
    assert re.search(r"failed steps +│ +0 │ +0", shown.getvalue())
    assert "node-1 fails" in shown.getvalue()
