"""Histories of requests, heartbeats, leaves and time, played on torchft's lighthouse and on ours.

torchft's own clock cannot be set: time passes. Each operation is stamped once torchft's status page
shows it, and our rules are then given the same operations at the same times; a history in which a
operation fell so near to a timeout, or took so long, that it could have been either way is left
out.
"""

import asyncio
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, product
from typing import NamedTuple

from hypothesis import strategies as st
from torchft.coordination import LighthouseServer

from experiments.lighthouse.calls import Answer, Calls
from torchloom_core.live.lighthouse.membership import Member, Rules, SavedState
from torchloom_core.live.lighthouse.quorum import Electorate

JOIN_S = 0.4
HEARTBEAT_S = 1.1
TICK_MS = 10
MARGIN_S = 0.12
SETTLE_S = 0.06
PAUSES_S = (0.65, 1.5)
"""Past the join timeout; past the heartbeat timeout too."""

NAMES = "abc"


class Operation(NamedTuple):
    """An operation of a replica group, or a wait."""

    what: str  # request, beat, leave or wait
    replica: str = ""
    step: int = 0
    shrink_only: bool = False
    commit_failures: int = 0
    wait_s: float = 0.0


class Quorum(NamedTuple):
    """An answer: the quorum."""

    quorum_id: int
    replicas: tuple[str, ...]


Answers = dict[str, list[Quorum]]
"""What each replica group was answered, in order."""


@dataclass
class Played:
    """The operations with their times, and the answers.

    ``lag_s`` is how long torchft took at most to hear of an operation.
    """

    min_replicas: int
    done: list[tuple[float, Operation]] = field(default_factory=list)
    answers: Answers = field(default_factory=dict)
    ended_s: float = 0.0
    lag_s: float = 0.0


@st.composite
def _one(draw: st.DrawFn) -> list[Operation]:
    what = draw(st.sampled_from(["request", "request", "beat", "leave", "wait"]))
    if what == "wait":
        return [Operation("wait", wait_s=draw(st.sampled_from(PAUSES_S)))]
    replica = draw(st.sampled_from(NAMES))
    return [draw(_requests(replica)) if what == "request" else Operation(what, replica)]


@st.composite
def _round(draw: st.DrawFn) -> list[Operation]:
    replicas = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=len(NAMES), unique=True))
    return [draw(_requests(replica)) for replica in replicas]


@st.composite
def _requests(draw: st.DrawFn, replica: str) -> Operation:
    return Operation(
        "request",
        replica,
        step=draw(st.integers(0, 3)),
        shrink_only=draw(st.sampled_from([False] * 5 + [True])),
        commit_failures=draw(st.sampled_from([0] * 4 + [1])),
    )


History = tuple[int, list[Operation]]
"""``min_replicas``, and what happens."""

histories: st.SearchStrategy[History] = st.tuples(
    st.integers(1, 3),
    st.lists(_one() | _round(), min_size=1, max_size=9).map(lambda parts: list(chain(*parts))),
)


async def play_all(batch: Iterable[History]) -> list[Played]:
    """Play them at once: what takes time is waiting."""
    return await asyncio.gather(*(play(history) for history in batch))


async def play(history: History) -> Played:
    """Do it all to a lighthouse of torchft's."""
    min_replicas, operations = history
    server = LighthouseServer(
        bind="127.0.0.1:0",
        min_replicas=min_replicas,
        join_timeout_ms=round(JOIN_S * 1000),
        quorum_tick_ms=TICK_MS,
        heartbeat_timeout_ms=round(HEARTBEAT_S * 1000),
    )
    port = int(server.address().rpartition(":")[2])
    calls = Calls(f"127.0.0.1:{port}")
    played = Played(min_replicas)
    open_calls: dict[str, asyncio.Task[Answer]] = {}
    started_s = time.monotonic()

    def collect() -> None:
        for replica, call in list(open_calls.items()):
            if call.done():
                del open_calls[replica]
                answer = call.result()
                received = Quorum(answer.quorum_id, answer.replicas)
                played.answers.setdefault(replica, []).append(received)

    for operation in operations:
        sent_s = time.monotonic()
        if operation.what == "wait":
            await asyncio.sleep(operation.wait_s)
        elif operation.what == "leave":
            if operation.replica not in open_calls:
                continue
            open_calls.pop(operation.replica).cancel()
        elif operation.what == "beat":
            await calls.heartbeat(operation.replica)
        elif operation.replica in open_calls:
            continue
        else:
            open_calls[operation.replica] = calls.request(
                operation.replica,
                step=operation.step,
                shrink_only=operation.shrink_only,
                commit_failures=operation.commit_failures,
            )
            await _seen(port, operation.replica, sent_s)
        if operation.what != "wait":
            played.lag_s = max(played.lag_s, time.monotonic() - sent_s)
        played.done.append((sent_s - started_s, operation))
        await asyncio.sleep(SETTLE_S)
        collect()
    await asyncio.sleep(max(PAUSES_S) + SETTLE_S)
    collect()
    played.ended_s = time.monotonic() - started_s
    for call in open_calls.values():
        call.cancel()
    await asyncio.gather(*open_calls.values(), return_exceptions=True)
    await calls.close()
    server.shutdown()
    return played


async def _seen(port: int, replica: str, sent_s: float) -> None:
    """Wait until torchft's page shows a message of ``replica`` after ``sent_s``."""
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        requested_s = time.monotonic()
        page = (await reader.read()).decode()
        writer.close()
        ages = re.findall(rf"\b{replica}: seen ([0-9.e-]+)s ago", page)
        if ages and float(ages[0]) <= requested_s - sent_s + 0.001:
            return
        await asyncio.sleep(0.005)


def ours(played: Played, join_s: float = JOIN_S, heartbeat_s: float = HEARTBEAT_S) -> Answers:
    """Return what our rules answer to the same operations at the same times."""
    rules = Rules(played.min_replicas, join_s, heartbeat_s)
    electorate = Electorate(rules, SavedState(quorum_id=0), 0.0)
    answers: Answers = {}
    waiting: dict[str, Member] = {}

    def advance(now_s: float) -> None:
        quorum = electorate.form(now_s)
        if quorum is None:
            return
        received = Quorum(quorum.quorum_id, tuple(m.replica_id for m in quorum.members))
        for replica_id in received.replicas:
            if waiting.pop(replica_id, None):
                answers.setdefault(replica_id, []).append(received)
        for member in waiting.values():
            electorate.request_again(member, now_s)

    now_s = 0.0
    for at_s, operation in [*played.done, (played.ended_s, Operation("wait"))]:
        while now_s < at_s:
            now_s = min(at_s, now_s + TICK_MS / 1000)
            advance(now_s)
        if operation.what == "beat":
            electorate.beat(operation.replica, now_s)
        elif operation.what == "leave":
            waiting.pop(operation.replica, None)  # torchft counts it in until it has been silent
        elif operation.what == "request":
            member = Member(
                b"",
                operation.replica,
                step=operation.step,
                shrink_only=operation.shrink_only,
                commit_failures=operation.commit_failures,
            )
            waiting[operation.replica] = member
            electorate.request(member, now_s)
            advance(now_s)
    return answers


def is_decidable(played: Played) -> bool:
    """Return whether a little more or less time would have changed nothing."""
    if played.lag_s > MARGIN_S / 2:
        return False
    near = (-MARGIN_S, MARGIN_S)
    first = ours(played)
    return all(
        ours(played, JOIN_S + join, HEARTBEAT_S + heartbeat) == first
        for join, heartbeat in product(near, near)
    )
