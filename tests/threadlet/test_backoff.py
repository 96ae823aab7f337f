"""Attempts of many workers spread, and none waits for ever."""

from torchloom_threadlet.sidecar.backoff import Backoff


def test_waits_spread_more_with_each_attempt_up_to_a_limit():
    herd = [Backoff(0.1, 5.0) for _ in range(1_000)]
    spreads = []
    for _ in range(12):
        waits_s = [one.next_s() for one in herd]
        assert 0.1 <= min(waits_s) <= max(waits_s) <= 5.0
        spreads.append(max(waits_s) - min(waits_s))
    assert spreads[0] < spreads[2] < spreads[4]
    assert spreads[-1] > 4.0


def test_after_a_success_it_begins_anew():
    backoff = Backoff(0.1, 5.0)
    for _ in range(20):
        backoff.next_s()
    backoff.reset()
    assert backoff.next_s() <= 0.3
