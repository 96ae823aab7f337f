"""The fleet model, played many times, against the formulas and the published Monte Carlo."""

import pytest

from experiments.formulas import monte_carlo
from experiments.formulas.run import PROCESSES

pytestmark = pytest.mark.slow

ERRORS = 3.5
"""Standard errors that the mean of the runs may be off."""
ROUNDING = 5e-5
SIZES = (
    (20, 800, 6e-4),
    (20, 1200, 8e-4),
    (20, 3000, 2e-3),
    (20, 1500, 7e-4),
    (20, 1500, 7e-4),
    (16, 1000, 7e-4),
    (16, 200, 3e-3),
    (20, 600, 9e-4),
    (20, 2500, 1e-3),
)
"""Of each process: runs, failures of a run, and the largest standard error of their mean."""


def assert_is_near(values, published, *, largest_error):
    mean, error = monte_carlo.estimate(values)
    assert error < largest_error
    assert abs(mean - published) <= ERRORS * error + ROUNDING, (mean, error, published)


@pytest.mark.parametrize(
    ("process", "size"), list(zip(PROCESSES, SIZES, strict=True)), ids=lambda one: ""
)
def test_a_process_wastes_as_in_the_published_monte_carlo(process, size):
    runs, failures, largest_error = size
    results = [process.play(seed, failures, **process.inputs) for seed in range(runs)]
    shares = [1 - one.ettr if process.is_waste else one.ettr for one in results]
    assert_is_near(shares, process.published, largest_error=largest_error)
    if process.is_exact or process.name == "per step":
        assert_is_near(shares, process.formula, largest_error=largest_error)
    if process.name.startswith("proactive"):
        assert all(result.proactive_saves for result in results)
    if process.name.startswith("migrations"):
        avoided = [one.avoided / (one.avoided + one.failures) for one in results]
        assert_is_near(avoided, process.inputs["recall"], largest_error=0.01)
