"""The saved state of a lighthouse, and its handling of invalid files."""

import asyncio
import json
import os

import pytest

from tests.waiting import soon
from torchloom_core.floor.errors import LighthouseError
from torchloom_core.live.lighthouse.membership import SavedState
from torchloom_core.live.lighthouse.protocol import reply
from torchloom_core.live.lighthouse.server import last_requests
from torchloom_core.live.lighthouse.state_file import StateFile, id_by_the_clock

STATE = SavedState(
    quorum_id=12, members=("a:1", "b:1"), aside=("c:1",), held=("d",), order=("b", "a")
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "lighthouse.json"


@pytest.fixture
def saved(path):
    path.parent.mkdir()
    StateFile(path, "run").save(STATE, 3)
    return path


def test_the_next_process_finds_the_saved_state(saved):
    state = StateFile(saved, "run")
    assert state.load() == (STATE, 3)
    assert not state.differs(STATE, 3)
    assert state.differs(STATE, 4)
    assert saved.stat().st_mode & 0o077 == 0


def test_where_nothing_was_saved_nothing_is_found(path):
    assert StateFile(path, "run").load() is None


def test_the_state_of_another_run_is_refused(saved):
    with pytest.raises(LighthouseError, match=r"need the state of run 'other', was of run 'run'"):
        StateFile(saved, "other").load()
    assert json.loads(saved.read_text())["run"] == "run"


def test_the_state_of_a_newer_version_is_refused_and_not_changed(saved):
    newer = json.loads(saved.read_text()) | {"v": 2}
    saved.write_text(json.dumps(newer))
    with pytest.raises(LighthouseError, match="need format 1 at most, was 2: a newer torchloom"):
        StateFile(saved, "run").load()
    newer["kept"]["what_is_new"] = 1
    saved.write_text(json.dumps(newer))
    with pytest.raises(LighthouseError, match="a newer torchloom"):
        StateFile(saved, "run").load()
    assert json.loads(saved.read_text()) == newer


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"run": "run"}',
        b'{"run": "run", "kept": {"quorum_id": -1}}',
        b'{"run": "run", "kept": {"quorum_id": 1, "members": [""]}}',
    ],
)
def test_a_damaged_state_is_renamed_and_logged(saved, damage, caplog):
    saved.write_bytes(damage)
    assert StateFile(saved, "run").load() is None
    assert saved.with_name("lighthouse.json.damaged").read_bytes() == damage
    assert len(caplog.messages) == 1
    assert "renamed to" in caplog.text


def test_a_state_that_cannot_be_read_is_refused(path):
    path.mkdir(parents=True)
    with pytest.raises(LighthouseError, match="need a regular file"):
        StateFile(path, "run").load()


@pytest.mark.parametrize("reply_bytes", [b"", b"\xff\xff", b"\x0a\x04\x08\x0c\x12\x00"])
def test_last_requests_that_are_none_are_as_good_as_not_known(saved, reply_bytes):
    saved.with_name("lighthouse.json.last").write_bytes(reply_bytes)
    assert last_requests(StateFile(saved, "run"), STATE) == ()


def test_a_pipe_in_the_place_of_the_last_requests_is_not_waited_for(saved):
    os.mkfifo(saved.with_name("lighthouse.json.last"))
    assert StateFile(saved, "run").last_reply() == b""


def test_last_requests_count_for_their_quorum_only(saved):
    from torchloom_core.live.lighthouse.membership import Member, Quorum

    members = (Member(b"\x0a\x03a:1", "a:1"), Member(b"\x0a\x03b:1", "b:1"))
    state = StateFile(saved, "run")
    state.save_reply(reply(Quorum(12, members, frozenset(("a:1", "b:1")))))
    assert last_requests(state, STATE) == members
    assert last_requests(state, SavedState(quorum_id=13, members=STATE.members)) == ()


async def test_a_second_lighthouse_is_refused_and_a_standby_takes_over(path):
    first, second, standby = (StateFile(path, "run") for _ in range(3))
    await first.take(wait=False)
    with pytest.raises(LighthouseError, match="another lighthouse uses this state"):
        await second.take(wait=False)
    waiting = asyncio.create_task(standby.take(wait=True))
    first.save(STATE, 1)
    await asyncio.sleep(0)
    assert not waiting.done()
    first.close()
    await soon(waiting)
    assert standby.load() == (STATE, 1)
    with pytest.raises(LighthouseError):
        await second.take(wait=False)


async def test_where_no_lock_can_be_the_start_fails_in_a_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LighthouseError, match="cannot be written: "):
        await StateFile(tmp_path / "file" / "lighthouse.json", "run").take(wait=False)


def test_ids_by_the_clock_rise_with_it():
    assert 0 < id_by_the_clock() <= id_by_the_clock() < 2**53
