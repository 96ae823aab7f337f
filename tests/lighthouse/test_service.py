"""Calls of Managers over real gRPC: their answers, the timing, and the effect of their ends."""

import asyncio
import random
import threading
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import grpc
import psutil
import pytest

from experiments.lighthouse.calls import Calls, member_bytes, request_bytes
from experiments.lighthouse.fuzzed import messages
from tests.deadlines import DEADLINE_S
from tests.waiting import eventually, soon
from torchloom_core.live.lighthouse import heartbeats as heartbeats_module
from torchloom_core.live.lighthouse import quorum as quorum_module
from torchloom_core.live.lighthouse import service as service_module
from torchloom_core.live.lighthouse.membership import Rules, SavedState
from torchloom_core.live.lighthouse.protocol import SERVICE
from torchloom_core.live.lighthouse.quorum import Electorate
from torchloom_core.live.lighthouse.server import last_requests, listen
from torchloom_core.live.lighthouse.service import Service
from torchloom_core.live.lighthouse.state_file import StateFile
from torchloom_core.wire.steering import Order

HOLD_S = 0.2
LONG_S = 1000.0
"""No test waits for a time-out of this kind."""


class Lighthouse:
    """One on a free port, with its parts within reach."""

    def __init__(self, service):
        self.service = service
        self.target = ""
        self.calls = []

    async def hang_up(self):
        for calls in self.calls:
            await calls.close(DEADLINE_S)  # the answers of the server's end are in flight

    @property
    def electorate(self):
        return self.service.electorate

    def manager(self) -> Calls:
        self.calls.append(Calls(self.target))
        return self.calls[-1]


@asynccontextmanager
async def lighthouse(
    *, hold_s=HOLD_S, saved=None, requests=(), state=None, join_s=LONG_S, silent_s=LONG_S
):
    rules = Rules(join_timeout_s=join_s, heartbeat_timeout_s=silent_s)
    electorate = Electorate(
        rules,
        saved or SavedState(quorum_id=0),
        asyncio.get_running_loop().time(),
        requests=requests,
    )
    service = Service(electorate, hold_s=hold_s, tick_s=0.02, state=state, epoch=0)
    async with AsyncExitStack() as stack:
        started = Lighthouse(service)
        stack.push_async_callback(started.hang_up)  # the last: it is the server that ends
        started.target = f"127.0.0.1:{await listen('127.0.0.1:0', service, stack)}"
        ticking = asyncio.create_task(service.tick())
        stack.callback(ticking.cancel)
        yield started


async def test_a_heartbeat_is_answered_after_the_delay_and_at_once_without_one():
    loop = asyncio.get_running_loop()
    async with lighthouse() as held:
        began_s = loop.time()
        assert await held.manager().heartbeat("a:1") == b""
        assert loop.time() - began_s >= HOLD_S
    async with lighthouse(hold_s=0) as at_once:
        assert await soon(at_once.manager().heartbeat("a:1")) == b""


async def test_a_group_whose_delayed_call_is_cut_is_removed_at_once():
    async with lighthouse(hold_s=LONG_S) as light:
        stays, goes = light.manager(), light.manager()
        call = goes.heartbeat("b:1")
        await eventually(lambda: "b:1" in light.electorate.heartbeats)
        answer = stays.request("a:1")
        await eventually(lambda: "a:1" in light.electorate.requests)
        await goes.close()
        assert (await soon(answer)).replicas == ("a:1",)
        assert light.service.counters.lost == 1
        with suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
            await call


async def test_a_group_that_ends_between_two_heartbeats_is_removed_once_the_next_is_due():
    async with lighthouse(hold_s=0.01) as light:
        stays, goes = light.manager(), light.manager()
        await soon(goes.heartbeat("b:1"))
        answer = stays.request("a:1")
        await asyncio.sleep(2 * heartbeats_module._OVERDUE_S)
        assert not answer.done()
        await goes.close()
        assert (await soon(answer)).replicas == ("a:1",)
        assert light.service.counters.lost == 1


async def test_a_late_heartbeat_of_a_connected_group_is_no_end():
    async with lighthouse(hold_s=0.01) as light:
        manager = light.manager()
        await soon(manager.heartbeat("b:1"))
        for _ in range(2):
            await asyncio.sleep(2 * heartbeats_module._OVERDUE_S)
            assert "b:1" in light.electorate.heartbeats
            await soon(manager.heartbeat("b:1"))
        assert light.service.counters.lost == 0


async def test_a_connected_group_without_heartbeats_is_removed_after_a_while(
    monkeypatch,
):
    monkeypatch.setattr(heartbeats_module, "_SILENT_S", 0.3)
    async with lighthouse(hold_s=0.01) as light:
        leaver = light.manager()
        for _ in range(2):
            await soon(leaver.heartbeat("b:1"))
        assert (await soon(light.manager().request("a:1"))).replicas == ("a:1",)
        assert light.service.counters.lost == 1


async def test_a_group_with_long_gaps_between_heartbeats_is_not_removed(monkeypatch):
    monkeypatch.setattr(heartbeats_module, "_SILENT_S", 0.1)
    async with lighthouse(hold_s=0.01) as light:
        slow = light.manager()
        await soon(slow.heartbeat("b:1"))
        await asyncio.sleep(0.3)
        await soon(slow.heartbeat("b:1"))
        await asyncio.sleep(0.5)
        assert light.service.counters.lost == 0
        assert "b:1" in light.electorate.heartbeats


async def test_a_call_replaced_by_a_newer_one_does_not_end_the_group():
    async with lighthouse(hold_s=LONG_S) as light:
        older, newer = light.manager(), light.manager()
        first = older.heartbeat("a:1")
        await eventually(lambda: light.service.counters.heartbeats == 1)
        second = newer.heartbeat("a:1")
        await eventually(lambda: light.service.counters.heartbeats == 2)
        first.cancel()
        await older.close()
        await soon(newer.request("a:1"))
        assert light.service.counters.lost == 0
        second.cancel()
        await newer.close()
        await eventually(lambda: light.service.counters.lost == 1)  # which is its own by now


async def test_a_group_that_reconnects_between_two_heartbeats_has_not_ended(monkeypatch):
    monkeypatch.setattr(heartbeats_module, "_LOOK_EVERY_S", LONG_S)  # it saw the first one last
    async with lighthouse() as light:
        first, second = light.manager(), light.manager()
        await soon(first.heartbeat("a:1"))
        again = second.heartbeat("a:1")
        await eventually(lambda: light.service.counters.heartbeats == 2)
        await first.close()
        assert await soon(again) == b""
        assert light.service.counters.lost == 0
        await second.close()
        await eventually(lambda: light.service.counters.lost == 1)


async def test_a_request_over_another_connection_outlasts_the_first():
    async with lighthouse(hold_s=0.01) as light:
        first, second = light.manager(), light.manager()
        await soon(first.heartbeat("a:1"))
        await soon(second.request("a:1"))
        await first.close()
        await asyncio.sleep(2 * heartbeats_module._OVERDUE_S)
        assert light.service.counters.lost == 0
        await second.close()
        await eventually(lambda: light.service.counters.lost == 1)


async def test_a_foreign_connection_that_closes_does_not_end_a_group():
    async with lighthouse(hold_s=LONG_S) as light:
        group, stranger = light.manager(), light.manager()
        own = group.heartbeat("a:1")
        await eventually(lambda: light.service.counters.heartbeats == 1)
        for number in range(3):
            call = stranger.heartbeat("a:1")
            await eventually(lambda number=number: light.service.counters.heartbeats == number + 2)
            call.cancel()
        await soon(light.manager().request("a:1"))
        assert light.service.counters.lost == 0
        own.cancel()


async def test_a_foreign_request_that_is_cut_off_does_not_remove_a_groups_request():
    async with lighthouse(saved=SavedState(quorum_id=0, members=("a:1", "b:1"))) as light:
        waits = light.manager().request("a:1")
        await eventually(lambda: "a:1" in light.electorate.requests)
        stranger = light.manager()
        calls = stranger.request("a:1")
        await eventually(lambda: light.service.counters.requests == 2)
        calls.cancel()
        await stranger.close()
        await soon(light.manager().request("b:1"))
        assert (await soon(waits)).replicas == ("a:1", "b:1")


async def test_a_process_without_free_descriptors_continues(monkeypatch):
    async with lighthouse(hold_s=0.01) as light:
        manager = light.manager()
        await soon(manager.heartbeat("b:1"))

        def fails(*_):
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(psutil.Process, "net_connections", fails)
        await asyncio.sleep(2 * heartbeats_module._OVERDUE_S)
        await soon(manager.heartbeat("b:1"))
        assert light.service.counters.lost == 0


async def test_fields_that_a_newer_torchft_adds_are_given_to_all_as_they_were_written():
    extra = b"\x9a\x06\x05handy"  # field 99, a text
    raw = {r: member_bytes(r, step=4, extra=extra) for r in ("a:1", "b:1")}
    async with lighthouse(saved=SavedState(quorum_id=0, members=("a:1", "b:1"))) as light:
        calls = [light.manager().request(r, step=4, extra=extra) for r in raw]
        for call in calls:
            assert (await soon(call)).raw == tuple(raw.values())
        light.electorate.steer(Order(names=("b", "a")), asyncio.get_running_loop().time())
        calls = [light.manager().request(r, step=4, extra=extra) for r in raw]
        for call in calls:
            assert all(extra in member for member in (await soon(call)).raw)


async def test_ranks_go_by_the_order_that_was_given():
    """As a Manager finds its rank: it sorts by replica id, and looks for its own."""
    members = tuple(f"{name}:1" for name in "abcd")
    async with lighthouse(
        saved=SavedState(quorum_id=0, members=members, order=("c", "a"))
    ) as light:
        calls = {r: light.manager().request(r, step=ord(r[0])) for r in members}
        for replica_id, call in calls.items():
            answer = await soon(call)
            ranked = sorted(zip(answer.replicas, answer.steps, strict=True))
            assert [chr(step) for _, step in ranked] == ["c", "a", "b", "d"]
            rank = [name for name, _ in ranked].index(replica_id)
            assert ranked[rank] == (replica_id, ord(replica_id[0]))


async def test_of_two_requests_of_a_group_the_newer_one_counts():
    async with lighthouse(saved=SavedState(quorum_id=0, members=("a:1", "b:1"))) as light:
        first = light.manager().request("a:1", step=1)
        await eventually(lambda: light.service.counters.requests == 1)
        second = light.manager().request("a:1", step=2)
        await eventually(lambda: light.service.counters.requests == 2)
        other = light.manager().request("b:1", step=2)
        for call in (first, second, other):
            assert (await soon(call)).steps == (2, 2)


async def test_a_group_that_repeats_its_request_and_drops_the_first_still_waits():
    async with lighthouse(saved=SavedState(quorum_id=0, members=("a:1", "b:1"))) as light:
        first = light.manager().request("a:1", step=1)
        await eventually(lambda: light.service.counters.requests == 1)
        second = light.manager().request("a:1", step=1)
        await eventually(lambda: light.service.counters.requests == 2)
        first.cancel()
        other = light.manager().request("b:1", step=1)
        for call in (second, other):
            assert (await soon(call)).steps == (1, 1)


async def test_a_request_of_an_ended_caller_is_no_member():
    async with lighthouse(saved=SavedState(quorum_id=0, members=("a:1", "b:1"))) as light:
        gone = light.manager().request("a:1")
        await eventually(lambda: "a:1" in light.electorate.requests)
        gone.cancel()
        await eventually(lambda: "a:1" not in light.electorate.requests)
        calls = [light.manager().request(r) for r in ("b:1", "a:1")]
        assert (await soon(calls[0])).replicas == ("a:1", "b:1")


@pytest.mark.parametrize(
    ("method", "data", "code", "detail"),
    [
        (f"/{SERVICE}/Heartbeat", b"\xff\xff", "INVALID_ARGUMENT", "LighthouseHeartbeatRequest"),
        (f"/{SERVICE}/Heartbeat", b"", "INVALID_ARGUMENT", "need a replica id"),
        (f"/{SERVICE}/Quorum", b"\x0a\x02\x0a\x09", "INVALID_ARGUMENT", "QuorumMember"),
        (f"/{SERVICE}/Quorum", request_bytes(b""), "INVALID_ARGUMENT", "need a replica id"),
        (
            f"/{SERVICE}/Quorum",
            request_bytes(member_bytes("a\x1b[31m:1")),
            "INVALID_ARGUMENT",
            "printable",
        ),
        (
            f"/{SERVICE}/Quorum",
            request_bytes(member_bytes("a:1", extra=b"\x9a\x06\x80\x80\x40" + bytes(1 << 20))),
            "INVALID_ARGUMENT",
            "need at most 1048576 B",
        ),
        (f"/{SERVICE}/Reboot", b"", "UNIMPLEMENTED", ""),
        ("/another.Service/Quorum", b"", "UNIMPLEMENTED", ""),
    ],
)
async def test_a_malformed_call_is_refused_in_a_line(method, data, code, detail):
    async with lighthouse(saved=SavedState(quorum_id=0, members=("a:1", "b:1"))) as light:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await soon(light.manager().raw(method, data))
        assert error.value.code().name == code
        assert detail in error.value.details()
        assert error.value.details().isprintable()
        calls = [light.manager().request(r) for r in ("a:1", "b:1")]
        assert (await soon(calls[0])).quorum_id == 0


@pytest.mark.slow
async def test_a_quorum_forms_despite_any_bytes_sent():
    """``experiments/lighthouse/run.py fuzz`` sends 100,000."""
    async with lighthouse(
        hold_s=0.01, saved=SavedState(quorum_id=0, members=("a:1", "b:1"))
    ) as light:
        sender = light.manager()
        rng = random.Random(1)
        for _ in range(20):
            sent = [sender.raw(*message) for message in messages(rng, 50)]
            await asyncio.gather(*sent, return_exceptions=True)
        assert light.service.counters.malformed
        calls = [light.manager().request(r, step=9) for r in ("a:1", "b:1")]
        assert (await soon(calls[0])).steps == (9, 9)


async def test_a_group_too_many_is_refused_and_harms_no_other(monkeypatch):
    monkeypatch.setattr(quorum_module, "MAX_REPLICAS", 2)
    async with lighthouse(saved=SavedState(quorum_id=0, members=("a:1", "b:1"))) as light:
        for call in (light.manager().heartbeat("c:1"), light.manager().request("c:1")):
            with pytest.raises(grpc.aio.AioRpcError, match="RESOURCE_EXHAUSTED"):
                await soon(call)
        calls = [light.manager().request(r) for r in ("a:1", "b:1")]
        assert (await soon(calls[0])).quorum_id == 0


async def test_a_lighthouse_that_ends_removes_no_group_and_answers_all_calls(caplog):
    async with lighthouse(
        hold_s=LONG_S, saved=SavedState(quorum_id=5, members=("a:1", "b:1"))
    ) as light:
        held = light.manager().heartbeat("b:1")
        await eventually(lambda: light.service.counters.heartbeats == 1)
        asking = light.manager().request("a:1")
        await eventually(lambda: "a:1" in light.electorate.requests)
    assert await soon(held) == b""
    with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
        await soon(asking)
    assert light.electorate.quorum_id == 5
    assert light.service.counters.quorums == 0
    assert not caplog.messages


class Later:
    """The clock, a minute on."""

    def __init__(self, clock):
        self._clock = clock

    def monotonic(self):
        return self._clock.monotonic() + 60.0


async def test_a_frozen_lighthouse_counts_no_group_as_silent_between_two_heartbeats(
    monkeypatch,
):
    async with lighthouse(hold_s=0.01) as light:
        manager = light.manager()
        for _ in range(2):
            await soon(manager.heartbeat("b:1"))
        for module in (service_module, heartbeats_module):
            monkeypatch.setattr(module, "time", Later(module.time))
        light.service._heartbeats.look_for_ends()
        assert light.service.counters.lost == 0
        assert "b:1" in light.electorate.heartbeats


async def test_a_lighthouse_that_was_frozen_does_not_take_the_others_for_silent(monkeypatch):
    async with lighthouse(hold_s=0, silent_s=5.0) as light:
        await soon(light.manager().heartbeat("b:1"))
        monkeypatch.setattr(service_module, "time", Later(service_module.time))
        asking = light.manager().request("a:1")
        await eventually(lambda: "a:1" in light.electorate.requests)
        assert light.service.counters.quorums == 0
        other = light.manager().request("b:1")
        assert (await soon(asking)).replicas == (await soon(other)).replicas == ("a:1", "b:1")


async def next_process(path: Path, **more):
    """Return the arguments of ``lighthouse`` from the previous process."""
    state = StateFile(path, "run")
    saved, _ = state.load()
    return {"state": state, "saved": saved, "requests": last_requests(state, saved), **more}


async def test_a_quorum_sent_to_some_members_is_sent_to_the_others_after_a_restart(tmp_path):
    path = tmp_path / "lighthouse.json"
    members = ("a:1", "b:1", "c:1")
    state = StateFile(path, "run")
    async with lighthouse(saved=SavedState(quorum_id=0, members=members), state=state) as light:
        calls = [light.manager().request(r, step=6) for r in members]
        first_answer = await soon(calls[0])
    async with lighthouse(**await next_process(path)) as light:
        await soon(light.manager().heartbeat("a:1"))  # it trains, and waits for the others
        again = [light.manager().request(r, step=6) for r in ("b:1", "c:1")]
        for call in again:
            answer = await soon(call)
            assert (answer.quorum_id, answer.raw) == (first_answer.quorum_id, first_answer.raw)
        further = [light.manager().request(r, step=7) for r in members]
        assert (await soon(further[0])).steps == (7, 7, 7)


async def test_no_answer_is_sent_before_the_quorum_is_saved(tmp_path):
    path = tmp_path / "lighthouse.json"
    state = StateFile(path, "run")
    async with lighthouse(state=state) as light:
        for step in range(3):
            answer = await soon(light.manager().request("a:1", step=step))
            later = await next_process(path)
            assert later["saved"].quorum_id == answer.quorum_id == 1
            assert [member.raw for member in later["requests"]] == list(answer.raw)


async def test_a_disk_that_takes_nothing_stops_no_quorum_and_is_complained_of(tmp_path, logged):
    path = tmp_path / "gone" / "lighthouse.json"
    async with lighthouse(state=StateFile(path, "run")) as light:
        assert (await soon(light.manager().request("a:1"))).quorum_id == 1
        assert light.service.counters.unsaved >= 1
        assert any("continues without its state saved" in line for line in logged.lines)
        path.parent.mkdir(exist_ok=True)
        await soon(light.manager().request("a:1", step=1))
        assert (await next_process(path))["saved"].quorum_id == 1


async def test_a_disk_that_hangs_is_waited_for_once(tmp_path, monkeypatch, logged):
    monkeypatch.setattr(service_module, "_SAVE_S", 0.05)
    go_on = threading.Event()
    state = StateFile(tmp_path / "lighthouse.json", "run")
    save = state.save
    monkeypatch.setattr(state, "save", lambda *a: (go_on.wait(30), save(*a)))
    async with lighthouse(state=state) as light:
        for step in range(5):
            assert (await soon(light.manager().request("a:1", step=step))).quorum_id == 1
        assert any("the disk took longer" in line for line in logged.lines)
        go_on.set()
        await eventually(lambda: light.service._writing.done())
        await soon(light.manager().request("a:1", step=9))
        assert (await next_process(tmp_path / "lighthouse.json"))["requests"][0].step == 9
