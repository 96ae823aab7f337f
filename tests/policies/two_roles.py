"""A view of trainers and rollout workers that wait for the queue between them."""

import numpy as np

from torchloom_core.testing import view_of

TICKS = 20


def fleet(trainers, rollouts, *, trainers_wait, rollouts_wait, now_s, dropped=0.0, **changes):
    """Show workers that wait for these shares of their time, and take a rollout a second."""
    roles = ["trainer"] * trainers + ["rollout"] * rollouts
    ticks = np.arange(TICKS, dtype=float)
    each = trainers_wait if isinstance(trainers_wait, list) else [trainers_wait] * trainers
    waits = [*each, *[rollouts_wait] * rollouts]
    takes = [1.0] * trainers + [np.nan] * rollouts
    drops = [dropped] * trainers + [np.nan] * rollouts
    return view_of(
        {
            "queue_wait_total_s": np.outer(waits, ticks),
            "rollouts_total": np.outer(takes, ticks),
            "dropped_stale_total": np.outer(drops, ticks),
        },
        now_s=now_s,
        role=roles,
        group=[f"g{number}" for number in range(len(roles))],
        state=["training"] * len(roles),
        **changes,
    )
