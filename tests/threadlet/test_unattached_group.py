"""A group that is not attached trains with attached ones: none votes, and no process ends."""

import json

import pytest
import torch

from tests.threadlet.training.groups import train, with_torchft
from torchloom_threadlet.compression import CompressedProcessGroup
from torchloom_threadlet.torchft import attach

STEPS = 4


def steps(manager):
    committed = []
    for _ in range(STEPS):
        manager.start_quorum()
        manager.allreduce(torch.ones(4000)).wait()
        committed.append(manager.should_commit())
    return committed


@with_torchft
@pytest.mark.parametrize("async_quorum", [False, True])
def test_no_group_votes_if_one_does_not_and_all_steps_are_committed(async_quorum, caplog):
    def body(group, manager, pg):
        loom = attach(group=f"g{group}")
        if group < 2:
            loom.manage(manager)
        return steps(manager), loom._worker.changes.can_vote

    results = train(3, body, async_quorum=async_quorum)
    assert [committed for committed, _ in results] == [[True] * STEPS] * 3
    assert [can_vote for _, can_vote in results] == [False] * 3
    assert caplog.text.count("is not attached to torchLoom, or to another version of it") == 2


@with_torchft
def test_groups_of_two_versions_do_not_vote_with_each_other():
    def body(group, manager, pg):
        loom = attach(group=f"g{group}")
        loom.manage(manager)
        if group == 1:
            with_ballot = pg.get_reconfigure_handle

            def another():
                handle = json.loads(with_ballot())
                return json.dumps(handle | {"torchloom": [2, *handle["torchloom"][1:]]})

            pg.get_reconfigure_handle = another
        return steps(manager), loom._worker.changes.can_vote

    results = train(2, body)
    assert results == [([True] * STEPS, False)] * 2


@with_torchft
def test_nothing_is_compressed_if_one_group_is_not_attached():
    def body(group, manager, pg):
        compressed = CompressedProcessGroup(pg, mode="bf16") if group < 2 else pg
        manager._pg = compressed
        loom = attach(group=f"g{group}")
        if group < 2:
            loom.manage(manager)
        return steps(manager)

    assert train(3, body) == [[True] * STEPS] * 3
