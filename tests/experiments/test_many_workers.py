"""Pretended workers on a real Weaver: what is on record is what they did."""

import pytest

from experiments.many_workers import frozen, herd, stop

pytestmark = pytest.mark.integration


@pytest.mark.long
async def test_a_knob_that_is_stopped_comes_to_what_the_workers_did(tmp_path):
    came = await stop.play(tmp_path, 40, after_s=0.3, within_s=2.0)
    assert came.is_true, came
    assert came.applied == 40  # all were sent before the stop
    assert came.result == "done"


@pytest.mark.long
async def test_a_successor_takes_in_what_was_acked_before_it_judges_an_end(tmp_path):
    came = await frozen.play(tmp_path, 8, applied=5)
    assert came.is_true, came


@pytest.mark.long
def test_a_herd_with_its_own_connections_enrols_and_is_commanded():
    came = {one.text: one.value for one in herd.play(["--workers", "40", "--quick"])}
    assert came["commands carried out twice"] == 0
    assert came["requests of the kill switch without answer"] == 0
