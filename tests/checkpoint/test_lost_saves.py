"""A save that a rank could not make keeps rank 0's writer waiting in no case."""

import queue
from types import SimpleNamespace

import msgspec

from tests.deadlines import DEADLINE_S
from torchloom_core.checkpoints.layout import Shard
from torchloom_core.checkpoints.storage import LocalFolder
from torchloom_threadlet.checkpoint import agreement
from torchloom_threadlet.checkpoint.agreement import LAG, Requests, SaveRequests
from torchloom_threadlet.checkpoint.writer import storing
from torchloom_threadlet.checkpoint.writer.orders import Order, TierPlace
from torchloom_threadlet.checkpoint.writer.pace import Pace
from torchloom_threadlet.checkpoint.writer.storing import Part
from torchloom_threadlet.checkpoint.writer.tier_thread import TierThread


def part(step):
    """Return an empty part of rank 0 of two."""
    described = msgspec.json.encode(Shard(rank=0, pieces=()))
    order = Order(
        slot=0, tiers=("path",), generation=1, step=step, token="0" * 8, run="", ranks=2, rank=0,
        good="", base="", bytes=0, described=len(described), owner="me",
    )  # fmt: skip
    return Part(order, memoryview(described))


def test_each_of_several_cancelled_saves_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(storing, "_HOPELESS_S", 0.0)
    reports = queue.SimpleQueue()
    place = TierPlace(name="path", place=str(tmp_path), keep=1)
    thread = TierThread(place, LocalFolder(tmp_path), Pace(), reports.put)
    thread.put(part(231))
    thread.cancel(231)
    thread.cancel(236)
    thread.start()
    assert [reports.get(timeout=DEADLINE_S).what for _ in range(2)] == ["stored", "incomplete"]
    thread.finish()
    thread.join(DEADLINE_S)


def test_a_lost_save_that_another_rank_hid_is_sent_again(monkeypatch):
    def with_another_rank(values, *_args, **_words):
        values[4] = max(int(values[4]), 237)  # the other rank has lost step 236
        return SimpleNamespace(wait=lambda: None)

    monkeypatch.setattr(agreement.dist, "all_reduce", with_another_rank)
    requests = SaveRequests(group="ranks")
    unheard = []
    for lost in (0, 232, 237, *[0] * LAG):
        requests.exchange(Requests((False,), lost=lost))
        unheard.append(requests.unheard)
    assert unheard[LAG:] == [0, 232, 0]
