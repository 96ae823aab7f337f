import pytest

from tests.pipeline.fleet import assert_same, undisturbed
from tests.waiting import until

pytestmark = pytest.mark.integration


def test_a_pipeline_goes_on_without_a_killed_worker_as_if_nothing_was(fleet):
    steps = 25
    four = fleet(4)
    four.start(steps, "w0", "w1", "w2", "w3")
    four.kill("w1", after_step=5)
    found = four.weights("w0", "w2", "w3")
    losses, weights = undisturbed(steps)
    assert four.losses("w0") == losses
    assert_same(found, weights)


@pytest.mark.long
def test_a_new_worker_takes_the_place_of_a_killed_one(fleet):
    steps = 600
    five = fleet(4)
    five.start(steps, "w0", "w1", "w2", "w3")
    five.kill("w0", after_step=5)
    until(lambda: max(five.losses("w1")) >= 10)
    five.start(steps, "w4")
    until(lambda: five.losses("w4"))
    found = five.weights("w1", "w2", "w3", "w4")
    losses, weights = undisturbed(steps)
    assert five.losses("w1") == losses
    seen = {step: loss for step, loss in five.losses("w4").items() if loss == loss}
    assert seen.items() <= losses.items()
    assert_same(found, weights)


@pytest.mark.long
def test_two_workers_killed_at_once_cost_no_step(fleet):
    steps = 40
    six = fleet(6)
    six.start(steps, *(f"w{number}" for number in range(6)))
    six.kill("w0", after_step=5)
    six.kill("w1", after_step=5)
    found = six.weights("w2", "w3", "w4", "w5")
    losses, weights = undisturbed(steps)
    assert six.losses("w2") == losses
    assert_same(found, weights)
