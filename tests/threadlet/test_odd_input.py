"""Any input of a script is made fit to be sent, or left out with one warning; nothing raises."""

import json
import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.deadlines import DEADLINE_S
from tests.preloaded import Preloaded
from torchloom_core.wire.codec import MAX_MESSAGE_BYTES, encode
from torchloom_core.wire.messages import Hello, Note
from torchloom_core.wire.operations import Checkpoint, Drain, SetKnob
from torchloom_threadlet.cleaning import fitting, name, whole
from torchloom_threadlet.identity import identify, read_join
from torchloom_threadlet.trainer.sample_buffer import SampleBuffer

HERE = Path(__file__).parent
WORKER = f"{'g' * 53}-fcb3d80e-0"


def start(errors, join_file):
    environment = {"TORCHLOOM_JOIN": str(join_file), "TORCHLOOM_HEARTBEAT_S": "0.1"}
    with errors.open("w") as stderr:
        return subprocess.Popen(
            [sys.executable, HERE / "odd_trainer.py"],
            env=os.environ | environment,
            stderr=stderr,
        )


@pytest.mark.long
@pytest.mark.integration
async def test_odd_input_reaches_the_weaver_as_far_as_possible(
    weaver, join_file, tmp_path, end_with_sidecars
):
    errors = tmp_path / "errors"
    process = start(errors, join_file)
    try:
        hello = await weaver.event(Hello, (await weaver.until(lambda: weaver.events))[0].worker)
        assert (len(hello.worker), hello.rack, hello.node) == (64, "r__ud800", "n_ud800_1")
        hello = await weaver.admit(hello.worker)
        full = await weaver.until(
            lambda: next((e for e in weaver.events if isinstance(e, Hello) and e.actuators), None)
        )
        assert full.group == hello.group
        note = await weaver.event(Note, hello.worker, kind="a_kind")
        fields = note.fields
        assert fields["step"] == str(2**70)
        assert (fields["nan"], fields["scalar"], fields["kind"], fields["none"]) == (
            "nan",
            3,
            7,
            None,
        )
        assert fields["odd"] == "<Odd without a text>"
        assert len(encode(note)) <= MAX_MESSAGE_BYTES
        assert len((await weaver.event(Note, hello.worker, kind="many")).fields) == 64
        batch = await weaver.beat(lambda batch: "train_loss" in batch.metrics, hello.worker)
        assert "7up" not in batch.metrics
        await weaver.beat(lambda batch: batch.step == -1, hello.worker)
        await weaver.beat(lambda batch: batch.step > 1, hello.worker)
        await weaver.beat(lambda batch: len(batch.metrics) > 1000, hello.worker)
        # The value is infinite once it is set: the knob stays, its value is not sent.
        assert (await weaver.ask(hello, SetKnob(knob="x", value=2.0), "c1")).status == "applied"
        failed = await weaver.ask(hello, Checkpoint(), "c2")
        assert (failed.status, len(failed.detail)) == ("failed", 2000)
        await weaver.send_roll_call()
        values = {"size": 2.0, "mode": r"\ud800", "log_level": "warning"}
        newest = await weaver.event(Hello, hello.worker, values=values)
        assert {spec.name for spec in newest.knobs} == {"x", "size", "mode", "far", "log_level"}
        assert (await weaver.ask(hello, Drain(), "c3")).status == "applied"
        process.wait(DEADLINE_S)
    finally:
        end_with_sidecars(process)
    output = errors.read_text()
    assert "Traceback" not in output
    assert "the sidecar ended after" not in output
    assert output.count("knob far: need true or false, a finite number") == 1


def test_an_impossible_step_is_minus_1():
    assert [whole(step) for step in (7, 2**70, -(2**70), float("nan"), "x", None, -2, True)] == [
        7,
        -1,
        -1,
        -1,
        -1,
        -1,
        -1,
        1,
    ]


def test_names_that_are_too_long_stay_distinct():
    one, other = name("a" * 70 + "1", "x"), name("a" * 70 + "2", "x")
    assert len(one) == len(other) == 64
    assert one != other


@pytest.mark.parametrize(
    ("given", "rank"),
    [
        ({"RANK": "3"}, 3),
        ({"RANK": "9" * 5000}, 0),
        ({"RANK": "-1"}, 0),
        ({"RANK": "2147483648"}, 0),
    ],
)
def test_an_impossible_rank_is_0(given, rank):
    assert identify(environment=given).placement.rank == rank
    assert identify(rank=2**40, environment={}).placement.rank == 0


@pytest.mark.parametrize(("given", "rank"), [({}, 0), ({"RANK": "3"}, 3)])
def test_the_warning_of_a_wrong_rank_names_the_rank_used(caplog, given, rank):
    identify(environment={"TORCHLOOM_RANK": "x", **given})
    need = "TORCHLOOM_RANK: need a whole number of at most 2147483647, was 'x'"
    assert caplog.messages == [f"{need}; using rank {rank}"]


def test_a_note_that_is_too_long_for_the_broker_is_cut_at_its_longest_field():
    note = Note(
        run="run",
        worker="a-0",
        incarnation=1,
        kind="dump",
        fields={"stacks": '"' * 400_000, "flight_recorder": "\x00" * 300_000, "n": 3},
    )
    cut = fitting(note)
    assert cut is not None
    assert len(encode(cut)) <= MAX_MESSAGE_BYTES
    assert cut.fields["n"] == 3


def test_samples_for_more_than_one_frame_are_taken_in_several():
    samples = SampleBuffer()
    row = {f"metric_{n:050}": 1.0 for n in range(1000)}
    for serial in range(1, 101):
        samples.waiting.append((serial, serial, row))
    taken = []
    while rows := samples.take(0):
        assert len(rows) < 50
        taken += rows
    assert len(taken) == 100
    assert samples.dropped == 0


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b'{"url": 3, "run": "r"}',
        b'{"url": "u", "run": "r r"}',
        b'{"url": "u", "run": "r", "creds": "none"}',
        b'{"url": "\\ud800", "run": "r"}',
        b'{"url": "u", "run": "r", "x": "' + b"x" * 2_000_000 + b'"}',
        b"\xff",
        b"",
    ],
)
def test_a_broken_join_file_is_none(tmp_path, data):
    path = tmp_path / "join.json"
    path.write_bytes(data)
    assert read_join(path) is None
    assert read_join(tmp_path) is None
    assert read_join(Path("a\0b")) is None


@pytest.mark.long
@pytest.mark.integration
def test_a_dtensor_is_a_metric_only_if_it_is_complete_on_the_rank(tmp_path):
    script, errors = HERE / "dtensor_rank.py", [tmp_path / "0", tmp_path / "1"]
    ranks = []
    for rank, path in enumerate(errors):
        with path.open("w") as stderr:
            command = [script, rank, tmp_path / "meeting"]
            ranks.append(Preloaded(command, stdout=PIPE, stderr=stderr))
    answers = [json.loads(rank.stdout.readline()) for rank in ranks]
    assert [rank.wait(DEADLINE_S) for rank in ranks] == [0, 0]
    for rank in ranks:
        rank.communicate()
    rows = [{name: of["row"][name] for name in sorted(of["row"])} for of in answers]
    assert rows == [{"one_rank": 7.0, "same": 5.0, "whole": 1.5}] * 2
    assert all("Partial" in of["note"] or "P(" in of["note"] for of in answers)  # as text
    for path in errors:
        warnings = [line for line in path.read_text().splitlines() if "DTensor placed" in line]
        assert [line.partition(":")[0] for line in warnings] == ["metric loss", "metric shard"]
        assert all("pass its .full_tensor(), which all ranks must call" in w for w in warnings)
