"""Faults that come in bursts, as examples to learn from."""

import math

import numpy as np

from torchloom_core.plugin import Example, Fault
from torchloom_core.testing import view_of

START_S = 1_000_000.0
DAY_S = 86_400.0


def grid(half_life_days, days=240, nodes=200, seed=1):
    """Return daily examples, a week ahead, of nodes of which each fault brings more.

    A fault has half a fault for offspring on average (a Hawkes process), most of them within
    the half life.
    """
    random = np.random.default_rng(seed)
    names = [f"n{i}" for i in range(nodes)]
    excited, faults, examples = np.zeros(nodes), [], []
    at = np.zeros((days, nodes), bool)
    for day in range(days):
        excited *= 0.5 ** (1 / half_life_days)
        at[day] = random.random(nodes) < 0.004 + 0.5 * math.log(2) / half_life_days * excited
        excited += at[day]
    for day in range(days - 7):
        now_s = START_S + day * DAY_S
        outcome = at[day + 1 : day + 8].any(axis=0).astype(float)
        faults += [
            Fault(
                worker=names[i], node=names[i], kind="exit", ts_ns=round(now_s * 1e9), id=f"{day}"
            )
            for i in np.flatnonzero(at[day])
        ]
        view = view_of(workers=names, node=names, faults=tuple(faults), now_s=now_s, tick_s=DAY_S)
        examples.append(Example(view=view, outcome=outcome))
    return examples
