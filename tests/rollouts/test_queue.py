"""The state of a rollout queue, without a connection."""

from torchloom_core.live.rollout_queue.queue import QueueLimits, RolloutQueue
from torchloom_core.wire.rollouts import MAX_KNOWN_VERSION, Hello, Publish, Put, Take


def queue_of(*clients, **limits):
    queue = RolloutQueue(QueueLimits(**limits))
    return queue, [queue.join(Hello(client=client)) for client in clients]


def put(queue, client, serial, version=0, positions=(), body=b"batch"):
    put = Put(serial=serial, version=version, positions=positions, size=len(body))
    return queue.put(client, put, body) if queue.reserve(len(body)) else None


def take(queue, client="t", serial=0, count=9, max_staleness=2):
    return queue.take(client, Take(serial=serial, count=count, max_staleness=max_staleness))


def test_batches_come_in_their_order_and_each_once():
    queue, _ = queue_of("r", "t")
    for serial in range(3):
        put(queue, "r", serial, body=b"%d" % serial)
    answer, bodies = take(queue, count=2)
    assert bodies == [b"0", b"1"]
    assert answer.depth == 1
    assert take(queue, serial=1)[1] == [b"2"]
    assert take(queue, serial=2) is None


def test_a_request_that_is_sent_again_is_done_once():
    queue, _ = queue_of("r", "t")
    first = Put(serial=0, version=0, size=5)
    put(queue, "r", 0)
    assert queue.earlier_put("r", first).outcome == "done"
    assert queue.reserve(5)  # on a second connection, while the first was still being served
    queue.put("r", first, b"batch")
    taken = take(queue)
    assert len(taken[1]) == 1
    assert take(queue) == taken
    assert take(queue, serial=1) is None


def test_a_batch_that_is_too_old_is_dropped_counted_and_its_prompts_given_out_again():
    queue, _ = queue_of("r", "t")
    assert queue.give("r", 3) == (0, 1, 2)
    put(queue, "r", 0, version=0, positions=(0, 1))
    put(queue, "r", 1, version=1, positions=(2,))
    queue.publish(3, b"weights")
    answer, _ = take(queue)
    assert [batch.version for batch in answer.batches] == [1]
    assert answer.dropped_stale == 1
    assert queue.give("r", 3) == (0, 1, 3)
    assert put(queue, "r", 2, version=0, positions=(3,)).outcome == "stale"
    assert put(queue, "r", 3, version=0, positions=(3, 9)).outcome == "stale"  # not its own
    assert queue.give("r", 2) == (3, 4)


def test_the_batches_that_were_taken_last_are_kept_up_to_a_limit():
    queue, _ = queue_of("r", "t", "u", batch_bytes=10)
    for serial, taker in enumerate("tu"):
        put(queue, "r", serial, body=b"%d" % serial * 6)
        take(queue, taker)
    assert take(queue, "u")[1] == [b"1" * 6]
    assert take(queue, "t") is None


def test_a_full_queue_has_no_room_until_a_batch_is_taken_or_does_not_come():
    queue, _ = queue_of("r", "t", batches=2, batch_bytes=10)
    assert queue.reserve(6)
    assert not queue.reserve(6)
    queue.release(6)
    assert put(queue, "r", 0)
    assert put(queue, "r", 1)
    assert put(queue, "r", 2) is None
    take(queue, count=1)
    assert put(queue, "r", 2)


def test_prompts_of_a_worker_that_ends_go_to_another():
    queue, (old, _) = queue_of("r", "s")
    queue.give("r", 3)
    put(queue, "r", 0, positions=(1,))
    queue.leave("r", old)
    assert queue.give("s", 3) == (0, 2, 3)


def test_a_prompt_that_is_answered_over_another_connection_is_not_given_out_again():
    queue, (old,) = queue_of("r")
    assert queue.give("r", 2) == (0, 1)
    queue.leave("r", old)
    put(queue, "r", 0, positions=(0,))
    assert queue.give("s", 2) == (1, 2)


def test_a_worker_that_has_connected_again_keeps_its_prompts():
    queue, (old,) = queue_of("r")
    queue.give("r", 2)
    queue.join(Hello(client="r"))
    queue.leave("r", old)
    assert queue.give("s", 1) == (2,)


def test_a_new_queue_continues_with_the_prompts_and_versions_that_clients_know():
    queue, _ = queue_of()
    queue.join(Hello(client="t", next_position=7, version=5))
    assert queue.give("t", 1) == (7,)
    assert queue.version == 5
    assert queue.weights == (-1, b"")


def test_a_version_that_is_only_heard_of_makes_no_batch_too_old():
    queue, _ = queue_of("r")
    queue.join(Hello(client="x", version=2**52))
    assert put(queue, "r", 0, version=3).outcome == "done"
    assert len(take(queue)[1]) == 1


def test_older_weights_replace_no_newer_ones():
    queue, _ = queue_of()
    queue.publish(2, b"new")
    queue.publish(1, b"old")
    assert queue.weights == (2, b"new")


def test_a_worker_that_answers_no_prompts_gets_no_more():
    queue, _ = queue_of("r", "s")
    while queue.give("r", 4096):
        pass
    (given,) = queue.give("s", 1)
    put(queue, "r", 0, positions=tuple(range(4096)))
    assert queue.give("r", 4096)[0] == given + 1 == 65_537


def test_a_client_with_a_connection_is_not_forgotten_however_many_come_after_it():
    queue, _ = queue_of("r")
    assert queue.give("r", 3) == (0, 1, 2)
    for number in range(5000):
        queue.leave(f"c{number}", queue.join(Hello(client=f"c{number}")))
    assert queue.give("r", 1) == (3,)
    assert len(queue._clients) <= 4097


def test_no_client_can_use_up_the_versions_of_weights():
    queue, _ = queue_of("t")
    last = 2**53
    assert "need version" in queue.refusal(Publish(version=last, size=1))
    queue.join(Hello(client="x", version=last))
    assert queue.version == MAX_KNOWN_VERSION
    assert queue.refusal(Publish(version=queue.version + 1, size=1)) == ""
