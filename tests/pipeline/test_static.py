import multiprocessing
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.deadlines import DEADLINE_S
from tests.pipeline.programs import OTHERS, UNDISTURBED
from tests.pipeline.static_worker import CLIP_NORM, main

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the weights by layer, the losses and the gradients' norm, by assignment and worker."""
    folder = tmp_path_factory.mktemp("weights")
    store = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(minutes=5)
    )
    forked = multiprocessing.get_context("forkserver")
    forked.set_forkserver_preload(["tests.pipeline.static_worker"])
    processes = [
        forked.Process(target=main, args=(worker, store.port, str(folder)))
        for worker in UNDISTURBED.workers
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(DEADLINE_S)
        process.kill()
    assert [process.exitcode for process in processes] == [0] * len(processes)
    return {path.stem: torch.load(path, weights_only=True) for path in folder.iterdir()}


@pytest.mark.parametrize("name", OTHERS)
def test_every_assignment_trains_the_same_weights(trained, name):
    first = {}
    for worker in UNDISTURBED.workers:
        weights, expected = trained[f"undisturbed-{worker}"]
        first |= weights
    assert expected[1] > CLIP_NORM
    assert sorted(first) == list(range(UNDISTURBED.layers))
    for worker in OTHERS[name].workers:
        weights, figures = trained[f"{name}-{worker}"]
        assert figures == expected
        assert all(torch.equal(weight, first[number]) for number, weight in weights.items())
