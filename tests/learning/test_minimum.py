import numpy as np
from threadpoolctl import threadpool_info

from torchloom_core.lab.learning import minimum


def test_loaded_libraries_use_one_thread_meanwhile():
    seen = []

    def loss(at):
        seen.extend(library["num_threads"] for library in threadpool_info())
        return float(((at - 3.0) ** 2).sum()), 2.0 * (at - 3.0)

    assert np.allclose(minimum(loss, np.zeros(2)).x, 3.0)
    assert seen
    assert set(seen) == {1}


def test_bounds_are_respected():
    def loss(at):
        return float(((at - 3.0) ** 2).sum()), 2.0 * (at - 3.0)

    found = minimum(loss, np.zeros(2), bounds=[(-1.0, 1.0), (None, None)])
    assert np.allclose(found.x, [1.0, 3.0])
