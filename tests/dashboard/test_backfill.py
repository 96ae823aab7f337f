"""What was tried while nobody here listened is shown as it stands on record."""

import asyncio
import contextlib
from pathlib import Path

import msgspec
import pytest

from tests.recorded_epoch import Recorder
from tests.waiting import eventually
from torchloom_core.live.dashboard import live
from torchloom_core.live.dashboard.preview import LandscapeNews
from torchloom_core.live.trajectory.landscape import Landscape
from torchloom_core.live.trajectory.preview import Preview
from torchloom_core.live.trajectory.standby_tasks import StandbyTasks
from torchloom_core.wire.events import Recovered
from torchloom_core.wire.landscape import Cells
from torchloom_core.wire.messages import Note
from torchloom_core.wire.preview import Curve
from torchloom_core.wire.standby_task import End
from torchloom_core.wire.status import FlightStatus, Status

END = End(points=2, seconds=1.0)


def curve(first, *losses):
    return Curve(repeat=0, arm="control", first=first, losses=losses)


def note(piece, command="c1.1", kind="preview", points=2):
    fields = {"command": command, "points": points, "of": 2, "piece": msgspec.json.encode(piece)}
    fields["piece"] = fields["piece"].decode()
    return Note(run="run", worker="v0-0", incarnation=1, kind=kind, fields=fields)


def status(*under_way, epoch=1):
    """Return what the Weaver says while these are under way."""
    flights = tuple(
        FlightStatus(
            id=command,
            worker="v0-0",
            verb="rehearse",
            status="accepted",
            age_s=1.0,
            incarnation=1,
            cause=f"p{command}",
        )
        for command in under_way
    )
    return Status(
        run="run",
        epoch=epoch,
        ts_ns=0,
        stopped=False,
        dry_run=False,
        ticks=1,
        malformed=0,
        workers=(),
        flights=flights,
    )


@pytest.fixture
def recorder(tmp_path):
    recorder = Recorder(tmp_path, 1)
    recorder.step(Recovered(epoch=1))
    yield recorder
    recorder.writer.close()


@pytest.fixture
def preview():
    return Preview()


@pytest.fixture
async def recalled(tmp_path, preview, monkeypatch):
    monkeypatch.setattr(live, "_DELAY_S", 0.0)
    found = live.Backfill(tmp_path, Landscape(), preview)
    following = asyncio.create_task(found.follow())
    yield found
    following.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await following


def record(recorder, *pieces):
    for piece in pieces:
        recorder.step(note(piece))
    recorder.writer.flush()


async def test_what_ended_before_the_dashboard_began_is_shown(recorder, recalled, preview):
    recorder.issue("c1.1", "v0-0", "rehearse")
    record(recorder, curve(0, 2.0, 1.0), END)
    recalled.compare(status())
    await eventually(lambda: preview.end)
    assert (preview.worker, preview.end) == ("v0-0", END)
    assert preview.curves == {(0, "control"): [2.0, 1.0]}


@pytest.mark.parametrize("before", [["c1.1"], []])
async def test_what_ended_while_the_broker_was_away_is_shown(recorder, recalled, preview, before):
    recalled.compare(status(*before))
    await eventually(lambda: not recalled._is_due.is_set())
    heard = StandbyTasks(preview)
    heard.add_command("c1.1", "v0-0", 1, "rehearse", "pc1.1")
    heard.take(note(curve(0, 2.0)))
    recorder.issue("c1.1", "v0-0", "rehearse")
    record(recorder, curve(0, 2.0), curve(1, 1.0), END)
    recalled.compare(status())
    await eventually(lambda: preview.end)
    assert preview.curves == {(0, "control"): [2.0, 1.0]}


async def test_what_was_lost_before_an_end_that_was_heard_is_shown(recorder, recalled, preview):
    recalled.compare(status())
    await eventually(lambda: not recalled._is_due.is_set())
    heard = StandbyTasks(preview)
    heard.add_command("c1.1", "v0-0", 1, "rehearse", "pc1.1")
    heard.take(note(END))
    recorder.issue("c1.1", "v0-0", "rehearse")
    record(recorder, curve(0, 2.0, 1.0), END)
    await recalled.miss()
    await eventually(lambda: preview.curves)
    assert preview.end == END


async def test_a_record_that_is_behind_takes_nothing_from_what_was_heard(
    recorder, preview, tmp_path
):
    heard = StandbyTasks(preview)
    heard.add_command("c1.1", "v0-0", 1, "rehearse", "pc1.1")
    heard.take(note(curve(0, 2.0, 1.0), points=2))
    recorder.issue("c1.1", "v0-0", "rehearse")
    recorder.step(note(curve(0, 2.0), points=1))
    recorder.writer.flush()
    found = live.Backfill(tmp_path, preview)
    found.compare(status())
    found._is_due.clear()
    await found._read()
    assert preview.curves == {(0, "control"): [2.0, 1.0]}
    assert found._is_due.is_set()


async def test_one_that_has_no_end_is_searched_once(recorder, recalled, preview):
    recorder.issue("c1.1", "v0-0", "rehearse")
    record(recorder, curve(0, 2.0))
    for under_way in (["c1.1"], []):
        recalled.compare(status(*under_way))
        await eventually(lambda: not recalled._is_due.is_set())
    await eventually(lambda: preview.version)
    recalled.compare(status())
    assert not recalled._is_due.is_set()


async def test_a_record_of_another_weavers_life_is_not_taken_for_this_runs(
    recorder, recalled, preview
):
    recorder.issue("c1.1", "v0-0", "rehearse")
    record(recorder, END)
    recalled.compare(status(epoch=7))
    await eventually(lambda: not recalled._is_due.is_set())
    assert preview.version == 0


async def test_a_record_that_cannot_be_read_is_one_line(recorder, recalled, tmp_path, caplog):
    record(recorder, curve(0, 2.0))
    (events,) = tmp_path.glob("epoch-*/events-*.jsonl")
    events.write_bytes(b"damaged\n")
    recalled.compare(status())
    await eventually(lambda: "earlier previews and landscapes are not shown: " in caplog.text)
    assert "Traceback" not in caplog.text


async def test_who_goes_on_telling_has_the_record_read_ever_less_often(
    recorder, tmp_path, preview, monkeypatch
):
    monkeypatch.setattr(live, "_DELAY_S", 0.001)
    goes_on, reads = True, []

    def read(root, *kinds):
        reads.append(root)
        preview.version += goes_on

    monkeypatch.setattr(live, "newest_recorded", read)
    record(recorder, curve(0, 2.0))
    found = live.Backfill(tmp_path, preview)
    following = asyncio.create_task(found.follow())
    found.compare(status())
    await eventually(lambda: len(reads) >= 6)
    assert found._pause_s >= 0.032
    goes_on = False
    await eventually(lambda: found._pause_s == 0.001)
    following.cancel()


def test_a_page_gets_a_landscape_again_when_it_has_more_points():
    heard, recorded, news = Landscape(), Landscape(), LandscapeNews()
    late, early = Cells(cells=((1, 1, 3.0),)), Cells(cells=((0, 0, 1.0),))
    heard.take(note(late, kind="landscape"), "p1")
    news.take(heard)
    for piece in (early, late):
        recorded.take(note(piece, kind="landscape"), "p1")
    heard.take_over(recorded)
    update = news.take(heard)
    assert update["new"]
    assert update["cells"] == [[0, 0, 1.0], [1, 1, 3.0]]


async def test_an_unreadable_folder_is_reported_and_ends_nothing(monkeypatch, logged):
    monkeypatch.setattr(live, "_DELAY_S", 0.0)
    found = live.Backfill(Path("x" * 300), Preview())
    found.compare(status())
    following = asyncio.create_task(found.follow())
    await eventually(
        lambda: (
            "earlier previews and landscapes are not shown" in str(logged.lines) or following.done()
        )
    )
    assert not following.done()
    following.cancel()
