"""A fleet of which now and then one worker fails, as examples to learn from."""

import numpy as np

from torchloom_core.plugin import Example
from torchloom_core.testing import view_of

TICKS, WORKERS, HORIZON = 160, 40, 10


def warming(seed=0, warns=True):
    """Return an example a tick; a worker warms up before it fails, unless nothing warns."""
    random = np.random.default_rng(seed)
    temp = 60 + random.normal(size=(WORKERS, TICKS))
    noise = random.normal(size=(WORKERS, TICKS))
    fails = random.random((WORKERS, TICKS)) < 0.004
    for worker, tick in np.argwhere(fails):
        if warns:
            temp[worker, max(0, tick - HORIZON) : tick] += 4.0
    found = []
    for tick in range(12, TICKS - HORIZON):
        metrics = {"temp": temp[:, tick - 9 : tick + 1], "noise": noise[:, tick - 9 : tick + 1]}
        outcome = fails[:, tick + 1 : tick + HORIZON + 1].any(axis=1).astype(float)
        found.append(Example(view=view_of(metrics, now_s=1e6 + tick), outcome=outcome))
    return found


def one_hot():
    """Return a view of twenty workers, of which the fourth has just warmed up."""
    temp = 60 + np.random.default_rng(5).normal(size=(20, 10))
    temp[3, -6:] += 4.0
    return view_of({"temp": temp, "noise": np.zeros((20, 10))})
