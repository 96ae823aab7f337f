"""Which worker's store a generation is formed through."""

from torchloom_core.live.rendezvous.known_worker import KnownWorker
from torchloom_core.live.rendezvous.workers import Workers
from torchloom_core.wire.assignment import Assignment, Stage
from torchloom_core.wire.generations import Join

CHOSEN = Assignment(generation=1, layers=2, routes=((Stage("a", 0, 1), Stage("b", 1, 2)),))


def test_a_store_that_no_step_was_committed_with_is_followed_by_the_next_workers():
    workers = Workers()
    for name in "ab":
        join = Join(worker=name, incarnation=1, store=f"{name}:1", layers=2)
        workers[name] = KnownWorker(join, 0.0)
    found = [workers.store_for(CHOSEN, step) for step in (-1, -1, -1, 4, 4)]
    assert found == ["a:1", "b:1", "a:1", "a:1", "b:1"]
