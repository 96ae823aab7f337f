"""Move nodes between two roles when one waits for the other."""

from collections.abc import Iterable, Mapping
from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from torchloom_core.plugin import (
    AssignRole,
    FleetView,
    Floats,
    Need,
    NotNegative,
    Positive,
    Proposal,
    Registry,
    Share,
    hookimpl,
)

_WAITED, _TAKEN, _DROPPED = "queue_wait_total_s", "rollouts_total", "dropped_stale_total"
_SAME = 0.1
"""A role whose workers change by a smaller share than this is measured on."""

_LEAST_BUSY = 0.02
"""A role that hardly works could be as much faster as this allows, and no more."""


class RoleBalancePolicy:
    """Propose that groups of the role that waits get the role that it waits for.

    Configure it for two roles, such as ``roles = ["trainer", "rollout"]``, with a rollout queue
    between them. A role is *idle* for the share of its time in which its workers wait for the
    queue. Trainers step together: that of the one that waits longest counts. Of rollout workers
    the mean counts, and rollouts that were dropped for their age count as idle time.

    Throughput x is that of the slower role. A role of n workers with idle share w could do
    x / (1 - w), and with m workers m / n times that; with k workers moved from the role d to r

        x(k) / x(0) = min((n_d - k) / n_d / (1 - w_d), (n_r + k) / n_r / (1 - w_r)).

    Groups are moved up to the best k, those that wait most first. The gain is the surplus of
    throughput over ``horizon_s``, on all GPUs of both roles; a move costs the GPUs of its group for
    ``move_s``. The nodes need agents (``torchloom node-agent``).
    """

    name = "role_balance"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[policies.role_balance]``."""

        window_s: Annotated[float, msgspec.Meta(ge=1, le=86_400)] = 60.0
        """Time over which waiting is measured, several steps long, seconds."""
        dwell_s: NotNegative = 120.0
        """After a proposal none follows for this long, seconds."""
        min_gain: NotNegative = 0.1
        """Least relative gain of throughput for which groups are moved."""
        move_s: NotNegative = 30.0
        """From a group's drain until its nodes work in the other role, seconds."""
        horizon_s: Positive = 1800.0
        """How long the roles are expected to need this balance, seconds."""
        confidence: Share = 0.8
        """Probability that they do, 0 to 1."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._counts: dict[str, int] = {}
        self._since_ns = 0
        self._next_ns = 0
        self.needs = tuple(Need(name, options.window_s) for name in (_WAITED, _TAKEN, _DROPPED))
        self.status = ""

    def on_tick(self, view: FleetView) -> Iterable[Proposal]:
        """Measure how idle each role is; propose moves to the one that is waited for."""
        options = self._options
        roles = _roles(view)
        if self._has_changed(roles) or not self._since_ns:
            self._counts = {name: len(rows) for name, rows in roles.items()}
            self._since_ns = view.now_ns
        measured_s = (view.now_ns - self._since_ns) / 1e9
        if len(roles) != 2 or measured_s < options.window_s:
            return
        states = _measured(view, roles, options.window_s)
        if any(np.isnan(state.idle) for state in states):
            return
        self.status = ", ".join(f"{state.role} idle {state.idle:.0%}" for state in states)
        if view.now_ns < self._next_ns:
            return
        to, donor = states
        groups = _groups(view, donor, roles[donor.role])
        best, ratio = _best(donor, to, [len(rows) for rows in groups.values()])
        if ratio < 1.0 + options.min_gain:
            return
        self._next_ns = view.now_ns + round(options.dwell_s * 1e9)
        moved, before = 0, 1.0
        gpus = view.costs.gpus_per_worker
        for group, rows in list(groups.items())[:best]:
            moved += len(rows)
            after = _ratio(donor, to, moved)
            yield Proposal(
                action=AssignRole(group=group, to=to.role),
                reason=f"role {donor.role} is idle for {donor.idle:.0%} of its time, {to.role} for "
                f"{to.idle:.0%}: with {donor.workers - moved} and {to.workers + moved} workers "
                f"throughput is about {after:.2f} times the present one",
                gain_gpu_s=(after - before) * options.horizon_s * gpus * _workers(states),
                cost_gpu_s=options.move_s * gpus * len(rows),
                confidence=options.confidence,
            )
            before = after

    def _has_changed(self, roles: Mapping[str, list[int]]) -> bool:
        return roles.keys() != self._counts.keys() or any(
            abs(len(rows) - self._counts[name]) > _SAME * self._counts[name]
            for name, rows in roles.items()
        )


class _State(NamedTuple):
    """A role: its training workers, its idle share of the time, and each row's waiting share."""

    role: str
    workers: int
    idle: float
    waits: Mapping[int, float]


def _roles(view: FleetView) -> dict[str, list[int]]:
    """Return the rows of the training workers by role."""
    rows_of: dict[str, list[int]] = {}
    for row in np.flatnonzero(view.is_in("training")).tolist():
        rows_of.setdefault(view.role[row], []).append(row)
    return rows_of


def _measured(view: FleetView, roles: Mapping[str, list[int]], window_s: float) -> list[_State]:
    """Return the state of each role, the least idle one first."""
    waited = _increase(view.window(_WAITED, window_s)) / view.tick_s
    taken = _increase(view.window(_TAKEN, window_s), per_tick=False)
    dropped = _increase(view.window(_DROPPED, window_s), per_tick=False)
    in_vain = np.nanmax(dropped, initial=0.0)
    lost = in_vain / max(in_vain + np.nansum(taken), 1.0)
    states = []
    for role, rows in roles.items():
        shares = np.clip(waited[rows], 0.0, 1.0)
        known = shares[np.isfinite(shares)]
        idle = np.nan
        if known.size and np.isfinite(taken[rows]).any():
            idle = float(known.max())
        elif known.size:
            idle = float(1.0 - (1.0 - known.mean()) * (1.0 - lost))
        waits = dict(zip(rows, np.nan_to_num(shares).tolist(), strict=True))
        states.append(_State(role, len(rows), idle, waits))
    return sorted(states, key=lambda state: (state.idle, state.role))


def _increase(window: Floats, *, per_tick: bool = True) -> Floats:
    """Return by how much each row's counter grew, ``(workers,)``; NaN if it began anew."""
    known = np.isfinite(window)
    rows, last_column = np.arange(len(window)), window.shape[1] - 1
    first, last = known.argmax(axis=1), last_column - known[:, ::-1].argmax(axis=1)
    grown = window[rows, last] - window[rows, first]
    ticks = np.where(last > first, last - first, np.nan)
    grown = np.where((grown >= 0) & np.isfinite(ticks), grown, np.nan)
    return grown / ticks if per_tick else grown


def _groups(view: FleetView, state: _State, rows: list[int]) -> dict[str, list[int]]:
    """Return the groups of a role with their rows, those that wait most first."""
    rows_of: dict[str, list[int]] = {}
    for row in rows:
        rows_of.setdefault(view.group[row], []).append(row)

    def order(group: str) -> tuple[float, str]:
        return -max(state.waits[row] for row in rows_of[group]), group

    return {group: rows_of[group] for group in sorted(rows_of, key=order)}


def _best(donor: _State, to: _State, sizes: list[int]) -> tuple[int, float]:
    """Return how many of the donor's groups to move, and the ratio of throughputs then."""
    moved = np.cumsum(sizes)[:-1].tolist()  # one group stays
    ratios = [1.0, *(_ratio(donor, to, count) for count in moved)]
    best = int(np.argmax(ratios))
    return best, ratios[best]


def _ratio(donor: _State, to: _State, moved: int) -> float:
    """Return the throughput with so many workers moved, over the present one."""
    left = (donor.workers - moved) / donor.workers / max(1.0 - donor.idle, _LEAST_BUSY)
    more = (to.workers + moved) / to.workers / max(1.0 - to.idle, _LEAST_BUSY)
    return min(left, more)


def _workers(states: Iterable[_State]) -> int:
    return sum(state.workers for state in states)


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the policy."""
    registry.policy(RoleBalancePolicy)
