"""A leader's trajectory files arrive at its standbys, byte for byte, without waiting for them."""

import asyncio

import pytest

from tests.waiting import eventually
from torchloom_core.config.services import Standby
from torchloom_core.floor.first_done import end_all
from torchloom_core.live.trajectory.layout import epoch_folder
from torchloom_core.live.transport.owner import Owner
from torchloom_core.live.transport.record_stream import Piece
from torchloom_core.live.weaver.record_copies import RecordFollower, RecordSender

STANDBY = Owner(host="h", pid=1, folder="/f", folder_id="f", since_ns=1)
EPOCH = 7


def contents(root):
    folder = epoch_folder(root, EPOCH)
    return {p.name: p.read_bytes() for p in folder.iterdir()} if folder.exists() else {}


@pytest.fixture
async def copying(connect_bus, tmp_path):
    """Start a sender and followers; return the leader's folder, the copies' roots, a follow()."""
    bus, tasks, followers = await connect_bus(), [], []
    await bus.standbys.listen()
    root = tmp_path / "leader"
    folder = epoch_folder(root, EPOCH)
    folder.mkdir(parents=True)
    (folder / "meta.json").write_bytes(b"{}")
    settings = Standby(record_bytes=4 << 20)
    sender = RecordSender(await bus.record_stream(), bus, settings, root, EPOCH)
    tasks.append(asyncio.create_task(sender.run()))

    async def follow(name):
        copy = tmp_path / name
        follower = RecordFollower(await bus.record_stream(), copy)
        followers.append(follower)
        tasks.append(asyncio.create_task(follower.run()))
        await bus.standbys.announce(STANDBY)
        return copy, tasks[-1]

    yield root, folder, follow
    await end_all(*tasks)
    await sender.finish()
    for follower in followers:
        follower.close()


async def test_copies_are_the_files_whatever_they_hold_also_after_a_restart_and_an_undone_write(
    copying,
):
    root, folder, follow = copying
    events, telemetry = folder / "events-000001.jsonl", folder / "telemetry-000001.arrow"
    events.write_bytes(b"a" * 700_000)
    copy, following = await follow("copy")
    await eventually(lambda: contents(copy) == contents(root))
    await end_all(following)
    telemetry.write_bytes(bytes(range(256)) * 2000)
    with events.open("ab") as file:
        file.write(b"b" * 10)
    copy, _ = await follow("copy")
    await eventually(lambda: contents(copy) == contents(root))
    events.write_bytes(b"a" * 700_000)
    await eventually(lambda: contents(copy) == contents(root))
    events.write_bytes(b"a" * 700_000 + b"c")
    await eventually(lambda: contents(copy) == contents(root))


async def test_what_is_older_than_the_stream_is_missing_at_a_late_standby_and_the_rest_is_whole(
    copying, caplog
):
    root, folder, follow = copying
    await follow("first")
    for number in (1, 2, 3):
        (folder / f"events-{number:06d}.jsonl").write_bytes(b"%d" % number * (2 << 20))
        await eventually(lambda: len(contents(folder.parents[1] / "first")) == number + 1)  # noqa: B023
    await eventually(lambda: contents(folder.parents[1] / "first") == contents(root))
    late, _ = await follow("late")
    await eventually(lambda: contents(late).get("events-000003.jsonl") == b"3" * (2 << 20))
    assert "events-000001.jsonl" not in contents(late)


async def test_a_successor_stores_nothing_before_its_record_is_copied(copying, connect_bus):
    root, _, follow = copying
    copy, _ = await follow("copy")
    await eventually(lambda: contents(copy) == contents(root))
    bus = await connect_bus()
    record = await bus.record_stream()
    before, _ = await record.last()
    later = epoch_folder(root, EPOCH + 1)
    later.mkdir()
    (later / "meta.json").write_bytes(b"{}")
    sender = RecordSender(record, bus, Standby(), root, EPOCH + 1)
    sending = asyncio.create_task(sender.run())
    await sender.sent()
    assert (await record.last())[0] > before
    await end_all(sending)
    await sender.finish()


async def test_what_a_leader_sent_that_was_cut_off_is_not_copied_after_its_successor_began(
    copying, connect_bus
):
    root, folder, follow = copying
    (folder / "events-000001.jsonl").write_bytes(b"1")
    copy, _ = await follow("copy")
    await eventually(lambda: contents(copy) == contents(root))
    record = await (await connect_bus()).record_stream()
    file = "events-000001.jsonl"
    for epoch, offset, data in ((EPOCH + 1, 0, b"a"), (EPOCH, 1, b"2"), (EPOCH + 1, 1, b"b")):
        await record.append(Piece(epoch=epoch, file=file, offset=offset, data=data))
    successor = epoch_folder(copy, EPOCH + 1) / file
    await eventually(lambda: successor.exists() and successor.read_bytes() == b"ab")
    assert contents(copy) == contents(root)
