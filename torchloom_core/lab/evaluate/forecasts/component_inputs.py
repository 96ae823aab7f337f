"""What is known of each component of a trace: its attributes, and its metrics by age.

The checks for leaks compare it with failures.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.arrays import Floats, Ints
from torchloom_core.lab.evaluate.forecasts.alarms import Bools
from torchloom_core.lab.evaluate.forecasts.labels import Incidents, Task
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.telemetry import codes, numbers
from torchloom_core.lab.trace.feed.watched import watch

GROUP = "its rack"
"""Name, in flags and ``--known-before``, of a component's parent in the topology."""
AGES = (1 / 32, 1 / 16, *(eighths / 8 for eighths in range(1, 7)))
"""Ages up to which the values of a component are averaged, from the one before, in traces."""
_AROUND_NS, _DATES = 20 * 365 * 86_400 * SECOND_NS, 0.99
"""A date is this near to the trace; a column of dates has this share of them."""
_UNITS_NS = (1e9, 1e6, 1e3, 1.0)
DAY_NS = 86_400 * SECOND_NS
"""Failures less than this apart may be one incident."""


class History(NamedTuple):
    """When components were there, and when they failed; all ``(components,)``, NaN without one.

    ``early`` and ``late`` count failures in the two halves of the trace. One has ``ended`` if it
    was absent for a horizon at the end of the trace, and ``failed`` if it did so at any time.
    """

    began_ns: Floats
    ended_ns: Floats
    failed_ns: Floats
    early: Floats
    late: Floats
    ended: Bools
    failed: Bools


class Column(NamedTuple):
    """One input of each component.

    ``looks`` has phrases, ages in ns and values up to that age, ``(components,)``, which are
    compared with later ends. The age of a first or constant value is -inf. Components with the same
    one, in ``cells``, are a group; NaN is none. ``came_ns`` is the time of the first value, -inf if
    it is constant, NaN without one. ``beyond`` is the share of values that are dates later than
    their row; 0 if others are not dates.
    """

    name: str
    looks: Sequence[tuple[str, float, Floats]]
    cells: Sequence[object]
    came_ns: Floats
    beyond: float = 0.0


class Turns(NamedTuple):
    """Times from the start, or the end of a failure, to the next one; all ``(turns,)``.

    They are sorted by component, then time; components with a single failure are left out.
    """

    owner: Ints
    began_ns: Ints
    failed_ns: Floats


class Seen(NamedTuple):
    """What the telemetry of some components has, NaN where there is nothing.

    ``began_ns`` and ``ended_ns``, ``(components,)``, are the times of the first and last row, and
    ``first``, ``(components, metrics)``, the first value of each metric. ``means``, ``(ages,
    components, metrics)``, are those of the values after the first row, between one of ``AGES`` and
    the next. ``counts``, ``(3, metrics)``, has the numbers of values, of dates, and of dates later
    than their row. ``returned``, ``(turns, metrics)``, is the first value of each metric in each
    turn.
    """

    began_ns: Floats
    ended_ns: Floats
    first: Floats
    first_ns: Floats
    means: Floats
    ages_ns: Floats
    counts: Floats
    turns: Turns
    returned: Floats
    returned_ns: Floats

    def column(self, metric: str, place: int) -> Column:
        """Return the metric at a place as a column."""
        first = self.first[:, place]
        looks = [("its first value", -np.inf, first)] + [
            (f"its mean up to {share:.3g} of the trace after its first row", age_ns, mean)
            for share, age_ns, mean in zip(AGES, self.ages_ns, self.means[..., place], strict=True)
        ]
        beyond = _beyond(self.counts[:, place])
        return Column(metric, looks, first.tolist(), self.first_ns[:, place], beyond)


def see(bundle: Bundle, metrics: Sequence[str], measured: Sequence[str], turns: Turns) -> Seen:
    """Return what some metrics of some components have, in one pass."""
    start_ns, end_ns = bundle.manifest.start_ns, bundle.manifest.end_ns
    shape, size = (len(measured), len(metrics)), len(metrics)
    cells = shape[0] * size
    began_ns, ended_ns = np.full((2, len(measured)), np.nan)
    firsts, returns = np.full((2, cells), np.nan), np.full((2, len(turns.owner) * size), np.nan)
    sums, often = np.zeros((2, len(AGES) * cells))
    counts = np.zeros((3, size))
    ages_ns: Floats = np.array(AGES) * (end_ns - start_ns)
    stride_s = (end_ns - start_ns) // SECOND_NS + 2
    turns_s = turns.owner * stride_s + (turns.began_ns - start_ns) // SECOND_NS
    for table in bundle.telemetry(metrics=metrics):
        row, value = codes(table["component"], measured), numbers(table["value"])
        valid = numbers(table["valid"]) & (row >= 0)
        row, value, at_ns = row[valid], value[valid], numbers(table["t_event"])[valid]
        column = codes(table["metric"], metrics)[valid]
        np.fmin.at(began_ns, row, at_ns.astype(np.float64))
        np.fmax.at(ended_ns, row, at_ns.astype(np.float64))
        every = np.ones(len(value), dtype=np.bool_)
        for place, one in enumerate((every, *_dates(bundle, value, at_ns))):
            counts[place] += np.bincount(column[one], minlength=size)
        finite = np.isfinite(value)
        row, value, at_ns, column = row[finite], value[finite], at_ns[finite], column[finite]
        cell, age = row * size + column, np.searchsorted(ages_ns, at_ns - began_ns[row])
        _add_first(firsts, cell, value, at_ns)
        later = (at_ns > began_ns[row]) & (age < len(ages_ns))
        place = (age * cells + cell)[later]
        with np.errstate(over="ignore", invalid="ignore"):
            np.add.at(sums, place, value[later])
        np.add.at(often, place, 1.0)
        if len(turns.owner):
            at_s = np.clip((at_ns - start_ns) // SECOND_NS, 0, stride_s - 2)
            turn = np.searchsorted(turns_s, row * stride_s + at_s, side="right") - 1
            own = (turn >= 0) & (turns.owner[turn] == row)
            _add_first(returns, (turn * size + column)[own], value[own], at_ns[own])
    means = np.divide(sums, often, out=np.full(len(sums), np.nan), where=often > 0)
    first, first_ns = firsts.reshape(2, *shape)
    returned, returned_ns = returns.reshape(2, len(turns.owner), size)
    return Seen(
        began_ns, ended_ns, first, first_ns, means.reshape(len(AGES), *shape), ages_ns, counts,
        turns, returned, returned_ns,
    )  # fmt: skip


def _add_first(firsts: Floats, cell: Ints, value: Floats, at_ns: Ints) -> None:
    """Add the first value of each cell that has none yet, and its time."""
    new = np.flatnonzero(np.isnan(firsts[0][cell]))
    own, at = np.unique(cell[new], return_index=True)
    firsts[:, own] = value[new[at]], at_ns[new[at]]


def _dates(bundle: Bundle, values: Floats, at_ns: Floats | Ints) -> tuple[Bools, Bools]:
    """Return which values are dates near the time of the trace, and which are after their row."""
    first_ns = bundle.manifest.start_ns - _AROUND_NS
    last_ns = bundle.manifest.end_ns + _AROUND_NS
    dates, beyond = np.zeros((2, len(values)), dtype=np.bool_)
    for unit_ns in _UNITS_NS:
        with np.errstate(over="ignore"):
            moment_ns = values * unit_ns
        near = (moment_ns >= first_ns) & (moment_ns <= last_ns)
        dates |= near
        beyond |= near & (moment_ns > at_ns + 3600 * SECOND_NS)
    return dates, beyond


def _beyond(counts: Floats | Ints) -> float:
    """Return the share of dates that are later than their row; 0 if other values are not dates."""
    values, dates, beyond = counts.tolist()
    return beyond / values if dates > _DATES * values else 0.0


def turns_of(found: Incidents, rows: Sequence[Sequence[int]], start_ns: int) -> Turns:
    """Return the turns of components, each of which is, or belongs to, watched ones by row."""
    order = np.argsort(found.row)
    row, none = found.row[order], np.zeros(0, dtype=np.int64)
    turns: list[tuple[Ints, Ints, Ints]] = [(none, none, none)]
    for place, own in enumerate(rows):
        spans = [order[slice(*np.searchsorted(row, [one, one + 1]))] for one in own]
        its = np.sort(np.concatenate([none, *spans]))
        if len(its) > 1:
            failed_ns, back_ns = found.start_ns[its], np.maximum.accumulate(found.end_ns[its])
            began_ns = np.fmin([start_ns, *back_ns[:-1]], failed_ns)
            turns.append((np.full(len(its), place), began_ns, failed_ns))
    owner, began_ns, failed_ns = map(np.concatenate, zip(*turns, strict=True))
    return Turns(owner, began_ns, failed_ns.astype(np.float64))


def history_of(
    bundle: Bundle,
    task: Task,
    found: Incidents,
    rows: Sequence[Sequence[int]],
    began_ns: Floats,
    ended_ns: Floats,
) -> History:
    """Return the history of components, each of which is, or belongs to, watched ones by row."""
    manifest, size = bundle.manifest, len(watch(bundle).ids)
    first_ns = np.full(size, np.nan)
    np.fmin.at(first_ns, found.row, found.start_ns.astype(np.float64))
    failed_ns = np.array([np.fmin.reduce(first_ns[[*own]], initial=np.nan) for own in rows])
    late = found.start_ns >= (manifest.start_ns + manifest.end_ns) // 2
    counts = [np.bincount(found.row[half], minlength=size) for half in (~late, late)]
    early, often = (np.array([one[[*own]].sum() for own in rows], dtype=float) for one in counts)
    ended = ended_ns < manifest.end_ns - task.horizon_ns
    return History(began_ns, ended_ns, failed_ns, early, often, ended, ~np.isnan(failed_ns))


def listed_history(
    bundle: Bundle, task: Task, found: Incidents, rows: Sequence[Sequence[int]], came_ns: Floats
) -> History:
    """Return the history of the watched components, by topology, telemetry and failures."""
    size = len(watch(bundle).ids)
    listed, began_ns, ended_ns = np.full((3, size), np.nan)
    for own, first_ns in zip(rows, came_ns.tolist(), strict=True):
        began_ns[[*own]] = np.fmin(began_ns[[*own]], first_ns)
    row_of = {name: row for row, name in enumerate(watch(bundle).ids)}
    for part in bundle.topology():
        if (row := row_of.get(part.id)) is not None:
            listed[row] = np.nan if part.from_ns is None else part.from_ns
            ended_ns[row] = np.nan if part.until_ns is None else part.until_ns
    listed[np.isnan(listed)] = bundle.manifest.start_ns
    np.fmin.at(ended_ns, found.row, found.start_ns.astype(np.float64))
    single = [(row,) for row in range(size)]
    return history_of(bundle, task, found, single, np.fmax(began_ns, listed), ended_ns)


def share_of_others(group: Ints, failed_ns: Floats) -> Floats:
    """Return the share of failed components among the others of each group, NaN without others.

    Both are ``(components,)``: the number of its group, and the time of its first failure, NaN
    without one. Components that failed within a day of each other, such as a rack that lost power,
    do not count for each other.
    """
    failed = ~np.isnan(failed_ns)
    order = np.lexsort((failed_ns, group))
    order = order[failed[order]]
    together = np.zeros(len(group))
    for own in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        last = np.searchsorted(failed_ns[own], failed_ns[own] + DAY_NS, side="right")
        together[own] = last - np.searchsorted(failed_ns[own], failed_ns[own] - DAY_NS) - 1
    members = np.bincount(group)[group] - 1.0 - together
    failures = np.bincount(group, failed)[group] - failed - together
    share: Floats = np.full(len(group), np.nan)
    np.divide(failures, members, out=share, where=members > 0)
    return share


def attribute(bundle: Bundle, name: str, history: History) -> Column:
    """Return a label as a column, or the rack."""
    watched = watch(bundle)
    cells: Sequence[object] = [labels.get(name) for labels in watched.labels.of]
    constant = np.full(len(cells), -np.inf)
    if name == GROUP or name not in watched.labels.numbers:
        return Column(name, (), watched.rack if name == GROUP else cells, constant)
    values = np.array(cells, dtype=float)
    came_ns = np.where(np.isnan(values), np.nan, constant)
    counts = np.count_nonzero(
        [~np.isnan(values), *_dates(bundle, values, history.began_ns)], axis=1
    )
    return Column(name, [("it", -np.inf, values)], cells, came_ns, _beyond(counts))
