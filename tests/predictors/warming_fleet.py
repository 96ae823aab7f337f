"""A fleet of which now and then one worker fails, as examples to learn from."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from torchloom_core.plugin import Example
from torchloom_core.testing import view_of

TICKS, WORKERS, HORIZON = 160, 40, 10


def predictor(cls, **options):
    wanted = {"metrics": ("temp", "noise"), "spans_s": (5.0,), "half_lives_s": ()}
    rest = {"horizon_s": float(HORIZON), "every_s": 1.0}
    return cls(cls.Options(**{**wanted, **rest, **options}))


def learned(cls, **options):
    found = predictor(cls, **options)
    found.fit(warming())
    return found


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


def comes_true(predictor, better):
    later = warming(seed=1)
    predicted = np.concatenate([predictor.forecast(e.view).probability for e in later])
    true = np.concatenate([e.outcome for e in later])
    assert average_precision_score(true, predicted) > better * true.mean()
    assert predicted.mean() == pytest.approx(true.mean(), rel=0.3)


def one_hot():
    """Return a view of twenty workers, of which the fourth has just warmed up."""
    temp = 60 + np.random.default_rng(5).normal(size=(20, 10))
    temp[3, -6:] += 4.0
    return view_of({"temp": temp, "noise": np.zeros((20, 10))})
