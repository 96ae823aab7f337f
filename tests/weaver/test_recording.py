"""Recording pauses before the last free bytes, and a disk that fills up is warned of in time."""

import pytest

from tests.small_disk import small_disk
from torchloom_core.config.schema import Config
from torchloom_core.config.trajectory import Trajectory
from torchloom_core.floor.clock import SECOND_NS, ManualClock
from torchloom_core.live.trajectory.reader import read_epochs
from torchloom_core.live.trajectory.writer import TrajectoryWriter
from torchloom_core.live.weaver.recording import Recording
from torchloom_core.wire.decisions import Notice
from torchloom_core.wire.events import Tick

pytestmark = pytest.mark.integration

MIB = 1 << 20


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk", 100) as folder:
        yield folder


@pytest.fixture
def clock():
    return ManualClock(1_800_000_000 * SECOND_NS)


@pytest.fixture
def writer(disk, clock):
    writer = TrajectoryWriter(disk / "run", "run", 1, Config(), {}, clock.now_ns())
    yield writer
    writer.close()


def test_a_disk_that_fills_within_hours_is_warned_of_once_an_hour(writer, disk, clock):
    recording, texts = Recording(writer, clock), []
    for minute in range(70):
        with (disk / "fill").open("ab") as file:
            file.write(bytes(MIB // 2 if minute < 50 else 0))
        texts += [news.text for news in (recording.check(),) if news]
        clock.advance_s(60)
    first, second = texts
    assert first == (
        f"the disk of {writer.folder} fills in about 3 h: 97.0 MiB free, 0.5 MiB per minute; "
        "recording pauses at 2.0 MiB"
    )
    assert " fills in about " in second


def test_a_disk_with_free_space_is_not_warned_of(tmp_path, clock):
    writer = TrajectoryWriter(tmp_path / "run", "run", 1, Config(), {}, clock.now_ns())
    recording = Recording(writer, clock)
    for _ in range(10):
        assert recording.check() is None
        clock.advance_s(600)
    writer.close()
    assert not recording.trouble


def test_a_nearly_full_disk_is_thinned_at_once_and_again_each_minute(writer, disk, clock):
    hurried = []
    rules = Trajectory(low_gib=1)
    recording = Recording(writer, clock, rules, on_low=lambda: hurried.append(clock.now_ns()))
    assert recording.check() is None
    assert not hurried
    (disk / "fill").write_bytes(bytes(96 * MIB))
    news = [recording.check() for _ in range(3)]
    assert " is nearly full: 4.0 MiB free; old telemetry is thinned now, and " in news[0].text
    assert news[1:] == [None, None]
    assert len(hurried) == 1
    clock.advance_s(60)
    assert recording.check() is None
    assert len(hurried) == 2


def test_the_last_free_bytes_are_left_to_the_broker(writer, disk, clock):
    recording = Recording(writer, clock)
    fill = disk / "fill"
    fill.write_bytes(bytes(99 * MIB))
    writer.event(Tick(), clock.now_ns(), ())
    assert isinstance(recording.check(), Notice)
    assert recording.trouble.startswith("paused since 2027-01-15T08:00Z, 0 inputs not recorded")
    for room in (97, 90):
        clock.advance_s(10)
        writer.event(Tick(), clock.now_ns(), ())
        fill.write_bytes(bytes(room * MIB))
        gap = recording.check()
        assert (gap is None) == (room == 97)
    writer.event(gap, clock.now_ns(), ())
    writer.flush()
    assert not recording.trouble
    assert [one.seq for one in read_epochs(disk / "run")[0].inputs()] == [1, 4]


def test_a_disk_on_which_each_write_fails_is_not_tried_at_every_tick(writer, disk, clock):
    recording = Recording(writer, clock)
    notices = tried = 0
    for _ in range(600):
        writer.pause("a write failed")  # whatever there is room for
        news = recording.check()
        notices += isinstance(news, Notice)
        tried += news is not None and not isinstance(news, Notice)
        clock.advance_s(0.1)
    assert tried <= notices <= 7
