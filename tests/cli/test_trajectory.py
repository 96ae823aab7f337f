import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pandas as pd
import pytest

from tests.deadlines import DEADLINE_S
from tests.recorded_epoch import record_epoch
from torchloom_core.live.trajectory.layout import run_folder
from torchloom_core.live.trajectory.summaries import RECORD_KINDS, summarise
from torchloom_core.wire.decisions import Output
from torchloom_core.wire.events import Input

pytestmark = pytest.mark.integration


@pytest.fixture
def recorded(folder):
    """A folder with the record of one epoch."""
    record_epoch(run_folder(folder.path / ".torchloom", "run"))
    return folder


def test_an_epoch_is_printed_as_lines_of_text(recorded):
    result = recorded.torchloom("trajectory", "show")
    assert result.returncode == 0, result.stderr
    for part in (
        "g0-0 of group g0 on node node7: training",
        "r1 alice requests knob lr = 0.25 on all",
        "granted by",
        "set_knob to g0-0 applied at step 4",
        "knob lr = 0.25 on all done",
        "migrate group g0 denied by",
        "r3 bob: stop_actions",
        "granted by person: requested by alice",
        "hang at step 4",
        "was killed by SIGKILL after step 4",
    ):
        assert part in result.stdout
    assert " tick " not in result.stdout


@pytest.mark.long
@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1", "utf-8"])
def test_no_command_fails_on_a_character_that_the_terminal_lacks(recorded, encoding, tmp_path):
    text = "naïve \u2192 \U0001f525"
    events = tmp_path / "events.csv"
    rows = f"2026-01-01,n1,{text}\n2026-01-09,n1,{text}\n"
    events.write_text(f"time,component,kind\n{rows}", "utf-8")

    def output(*words):
        result = subprocess.run(
            [Path(sys.executable).with_name("torchloom"), *words],
            cwd=recorded.path,
            env=os.environ | {"PYTHONIOENCODING": f"{encoding}:strict"},
            capture_output=True,
            timeout=DEADLINE_S,
        )
        assert (result.returncode, b"Traceback" in result.stderr) == (0, False), result
        return result.stdout.decode(encoding)

    arrow = "→" if encoding == "utf-8" else "->"
    assert f" {arrow} verdict" in output("trajectory", "show")
    for words in (["--help"], ["trajectory", "show", "--help"], ["plugins"]):
        output(*words)
    trace = tmp_path / "ö.tltrace"
    output("trace", "import", "csv", str(events), str(trace))
    assert "naïve" in (trace / "events.jsonl").read_text("utf-8")
    kinds = json.loads(output("trace", "describe", "--json", str(trace)))["kinds"]
    assert kinds == {text: 2}


def test_the_parent_of_a_trajectory_is_one_line(recorded):
    result = recorded.torchloom("trajectory", "show", ".torchloom/trajectory")
    assert result.returncode != 0
    assert result.stderr.endswith("; found one at .torchloom/trajectory/run\n")
    assert result.stderr.count("\n") == 1


@pytest.mark.long
def test_records_are_filtered_by_kind_worker_and_number(recorded):
    def shown(*words: str) -> list[dict[str, object]]:
        result = recorded.torchloom("trajectory", "show", "--json", *words)
        return [json.loads(line) for line in result.stdout.splitlines()]

    everything = shown()
    assert [line["kind"] for line in shown("--kind", "tick")] == ["tick"]
    assert {line["kind"] for line in shown("--kind", "verdict", "--kind", "outcome")} == {
        "verdict",
        "outcome",
    }
    assert shown("--last", "2") == everything[-2:]
    assert {line["worker"] for line in shown("--worker", "g0-0")} == {"g0-0"}
    assert shown(".torchloom/trajectory/run") == everything


def test_an_unknown_record_kind_is_one_line(recorded):
    result = recorded.torchloom("trajectory", "show", "--kind", "verdit")
    assert result.returncode == 2
    assert result.stderr.startswith(
        "torchloom: --kind: unknown record kind 'verdit'; did you mean verdict"
    )


@pytest.mark.long
def test_follow_prints_new_records_and_repeats_none(recorded):
    command = [Path(sys.executable).with_name("torchloom"), "trajectory", "show", "--json"]
    before = recorded.torchloom("trajectory", "show", "--json").stdout.splitlines()
    (run_folder(recorded.path / ".torchloom", "run") / "epoch-!").mkdir()  # not an epoch
    with subprocess.Popen(
        [*command, "--follow"],
        cwd=recorded.path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert [process.stdout.readline().rstrip() for _ in before] == before
        record_epoch(run_folder(recorded.path / ".torchloom", "run"), epoch=2)
        added = [json.loads(process.stdout.readline()) for _ in before]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert {line["epoch"] for line in added} == {2}
    assert [line["kind"] for line in added] == [json.loads(line)["kind"] for line in before]
    assert process.returncode == 130
    assert errors == ""


def test_a_replay_gives_the_same_decisions(recorded):
    result = recorded.torchloom("trajectory", "replay")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "all the same" in result.stdout
    assert json.loads(recorded.torchloom("trajectory", "replay", "--json").stdout)["epoch"] == 1


@pytest.mark.long
def test_a_replay_that_differs_shows_where_and_fails(folder):
    record_epoch(folder.path / "other", lose=1)
    result = folder.torchloom("trajectory", "replay", "other")
    assert result.returncode == 1
    assert "5 inputs, 1 verdicts, then output 6 of input 5 differs" in result.stdout
    assert "recorded nothing\nreplayed {" in result.stdout


@pytest.mark.long
def test_an_export_opens_in_pandas(recorded):
    result = recorded.torchloom("trajectory", "export", "out", "--json")
    names = [json.loads(line)["file"] for line in result.stdout.splitlines()]
    (events,) = (recorded.path / "out" / name for name in names if "/events-" in name)
    assert "verdict" in set(pd.read_parquet(events)["kind"])
    assert recorded.torchloom("trajectory", "export", "out").stdout == "nothing new to export\n"


@pytest.mark.long
def test_the_space_of_a_record_is_shown_and_an_epoch_in_use_is_not_pruned(folder):
    record_epoch(folder.path / "own")
    writer = (folder.path / "own" / "epoch-000001" / "meta.json").open()
    fcntl.flock(writer, fcntl.LOCK_EX)  # as the Weaver that records it
    used = folder.torchloom("trajectory", "du", "own").stdout
    assert re.search(r"epoch +kind +files +size +oldest +newest\n1 in use +decisions +2 ", used)
    refused = folder.torchloom("trajectory", "prune", "own", "--epoch", "1")
    assert refused.returncode
    assert "need an epoch that has ended, was one that a Weaver records" in refused.stderr
    writer.close()
    dry = folder.torchloom("trajectory", "prune", "own", "--epoch", "1", "--dry-run").stdout
    assert "telemetry parts 1 to 1 would be deleted: " in dry
    folder.torchloom("trajectory", "prune", "own", "--epoch", "1")
    assert "deleted telemetry" in folder.torchloom("trajectory", "du", "own").stdout
    replayed = folder.torchloom("trajectory", "replay", "own").stdout
    assert " all the same up to input " in replayed
    assert " was deleted" in replayed


def test_every_record_kind_has_a_summary():
    kinds = {str(cls.__struct_config__.tag) for cls in (*get_args(Input), *get_args(Output))}
    assert kinds == RECORD_KINDS


def test_an_unknown_record_kind_has_an_empty_summary():
    assert summarise("tomorrow", {"x": 1}) == ""
