"""A recorded run is shown as it was at its end."""

import asyncio
import json
import os

import pytest

from tests.dashboard.records import since
from tests.recorded_epoch import record_epoch
from tests.waiting import eventually
from torchloom_core.floor.errors import StateError
from torchloom_core.floor.first_done import end_all
from torchloom_core.live.dashboard.board import STATES
from torchloom_core.live.dashboard.run_state import RecordedRun
from torchloom_core.live.fleet.time_accounting import KINDS


async def read(root):
    past = RecordedRun(root, 10.0)
    reading = asyncio.create_task(past.follow())
    try:
        await eventually(lambda: "as it was at" in past.trouble or reading.done())
        if reading.done():
            reading.result()
    finally:
        await end_all(reading)
    return past


async def test_what_was_seen_decided_and_done_is_all_there(tmp_path):
    record_epoch(tmp_path)
    past = await read(tmp_path)
    assert past.run == "run"
    update = past.board.worker(0, past.now_s)
    assert (update["worker"], update["node"], update["state"], update["step"]) == (
        "g0-0",
        "node7",
        "failed",
        3,
    )
    stories = since(past.record, "stories")
    assert [story.granted for story in stories] == [True, False]
    assert stories[0].steps == {4: 1}
    assert (stories[0].reason, stories[0].detail) == ("requested by alice", "")
    assert {"verdict", "issued", "applied"} <= set(stories[0].moments)
    assert sum(past.board.time_account.shares[kind] for kind in KINDS) > 0
    lines = [line.text for line in since(past.record, "lines")]
    assert "r1 alice requests knob lr = 0.25 on all" in lines
    assert any("was killed by SIGKILL" in line for line in lines)
    assert past.age_s is None


async def test_several_lives_are_one_run(tmp_path):
    for epoch in (1, 2, 3):
        record_epoch(tmp_path, epoch=epoch)
    past = await read(tmp_path)
    assert len(past.board) == 1
    assert STATES[past.board.states(past.now_s)[0]] == "failed"
    assert len(since(past.record, "stories")) >= 2


def test_where_there_is_no_trajectory_is_one_line(tmp_path):
    for root in (tmp_path, tmp_path / "none"):
        with pytest.raises(StateError, match="need the folder of a trajectory"):
            RecordedRun(root, 10.0)


async def test_a_damaged_record_ends_the_reading_with_its_place(tmp_path):
    record_epoch(tmp_path)
    (events,) = tmp_path.glob("epoch-*/events-*.jsonl")
    lines = events.read_bytes().splitlines(keepends=True)
    events.write_bytes(b"".join([lines[0], b"damaged\n", *lines[2:]]))
    with pytest.raises(StateError, match=r"events-000001\.jsonl:2: "):
        await read(tmp_path)


async def test_a_pipe_in_the_place_of_a_part_is_refused_unread(tmp_path):
    record_epoch(tmp_path)
    part = next(tmp_path.rglob("events*"))
    part.unlink()
    os.mkfifo(part)
    with pytest.raises(StateError, match="Not a regular file"):
        await read(tmp_path)


async def test_an_output_of_no_kind_is_passed_over(tmp_path):
    record_epoch(tmp_path)
    part = next(tmp_path.rglob("events*"))
    lines = [json.loads(line) for line in part.read_text().splitlines()]
    for line in lines[1::2]:
        line["body"] = {"nothing": 1} if line["io"] == "out" else line["body"]
    part.write_text("".join(json.dumps(line) + "\n" for line in lines))
    past = await read(tmp_path)
    assert len(past.board) == 1
