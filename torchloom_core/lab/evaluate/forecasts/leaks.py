"""Find inputs that know the future: what was made afterwards and reveals the end of a component.

Apart from its time, nothing honest relates a component's first values to an end more than a horizon
later. So what is known of each component, its attributes as well as its metrics at several ages, is
compared with how long it was there and whether it failed, alone, in groups and in pairs. The checks
use the whole trace, as no model is fitted here; a fit and a replay call them. docs/fitting.md has a
table of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations

import numpy as np

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.arrays import Floats, Ints
from torchloom_core.interface.needs import (
    NeedFaults,
    NeedPast,
    PredictorNeed,
    labels_read,
    windows_s,
)
from torchloom_core.lab.evaluate.forecasts.alarms import Bools
from torchloom_core.lab.evaluate.forecasts.component_inputs import (
    DAY_NS,
    GROUP,
    Column,
    History,
    Seen,
    attribute,
    history_of,
    listed_history,
    see,
    share_of_others,
    turns_of,
)
from torchloom_core.lab.evaluate.forecasts.labels import Task, incidents
from torchloom_core.lab.learning.features import AT_ONCE_S
from torchloom_core.lab.learning.forecast_score import LEAKY_COLUMN
from torchloom_core.lab.learning.ranking import (
    centred_ranks,
    clear,
    correlation,
    partial_correlation,
    residual,
    roc_auc,
)
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.feed.watched import watch

IN_SERVICE = "time in service"
"""Name, in flags and ``--known-before``, of a late start."""
FEWEST = 20  # ended or failed components for a result
SEPARATED = 0.95  # ROC AUC between failed and other components
_RELATED = 0.8  # rank correlation of a column with lifetimes,
_RELATED_BESIDE = 0.9  # beside another column,
_OPPOSED = 0.5  # and of the two halves of a total
_MOST_PER_PAIR = 1000
_BEYOND = 0.01  # share of values that are dates later than their row
_EARLY = 2 / 3  # of a component's time, where its events count: more near a failure is honest
_AT_ONCE_S = 60.0
_TIMES, _CHANCE = 10.0, 0.01  # ratio of failure rates of late and early components, and its p

Flag = tuple[str, str]
"""The name of an input, and the reason."""


def find_leaky_inputs(
    bundle: Bundle,
    needs: Sequence[PredictorNeed],
    task: Task,
    *,
    tick_s: float,
    every_s: float,
    known_before: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return a flag with name and reason for each leaky input that a predictor reads.

    Samples are ``tick_s`` apart, and forecasts ``every_s``. Inputs that are ``known_before`` are
    skipped: metrics, attributes, kinds of event, ``GROUP`` and ``IN_SERVICE``.
    """
    watched, reads = watch(bundle), {type(need) for need in needs}
    found = incidents(bundle.events(), watched, task, known_until_ns=bundle.manifest.end_ns)
    labels = [*labels_read(needs), *[GROUP] * (NeedFaults in reads)]
    metrics = [metric for metric in windows_s(needs) if metric not in known_before]
    measured = [one for one in bundle.measured if watched.rows_of(one)] if metrics else []
    rows = [watched.rows_of(one) for one in measured]
    seen = see(bundle, metrics, measured, turns_of(found, rows, bundle.manifest.start_ns))
    history = history_of(bundle, task, found, rows, seen.began_ns, seen.ended_ns)
    listed = listed_history(bundle, task, found, rows, seen.began_ns)
    attributes = [attribute(bundle, name, listed) for name in labels if name not in known_before]
    flags = leaky_columns(attributes, listed, task)
    if NeedFaults in reads:
        kinds = leaky_kinds(bundle, task, listed, step_ns=round(every_s * SECOND_NS))
        flags += [flag for flag in kinds if flag[0] not in known_before]
    columns = [seen.column(metric, place) for place, metric in enumerate(metrics)]
    leaky = leaky_columns(columns, history, task)
    named = {name for name, _ in leaky}
    flags += leaky + [one for one in leaky_returns(seen, metrics, task) if one[0] not in named]
    if NeedPast in reads and IN_SERVICE not in known_before:
        flags += leaky_service(bundle, history, tick_ns=round(tick_s * SECOND_NS))
    return tuple(f"{LEAKY_COLUMN}: {name}: {why}" for name, why in flags)


def leaky_columns(columns: Sequence[Column], history: History, task: Task) -> list[Flag]:
    """Return the columns that reveal the end of a component, alone or beside another one."""
    found = {one.name: next(filter(None, _reasons(one, history, task)), "") for one in columns}
    first = {one.name: one.looks[0][2] for one in columns if one.looks and not found[one.name]}
    found |= _given_another(first, history)
    return [(name, why) for name, why in found.items() if why]


def _reasons(column: Column, history: History, task: Task) -> Iterator[str]:
    """Yield the reasons why a column is leaky by itself, "" where a check passes."""
    if column.beyond >= _BEYOND:
        yield f"{column.beyond:.0%} of its values are dates later than their row"
    ended_ns, failed_ns = history.ended_ns, history.failed_ns
    for subject, age_ns, values in column.looks:
        far_ns = history.began_ns + age_ns + task.horizon_ns
        valid = ~np.isnan(values) & ~(ended_ns <= far_ns)
        own = valid & history.ended
        if found := _related(values[own], history.began_ns[own], ended_ns[own]):
            lifetime = f"predicts the lifetime of {own.sum()} components"
            yield f"{subject} {lifetime}, rank correlation {found:.2f}"
        yield _separation(subject, values, valid & (failed_ns > far_ns), valid & ~history.failed)
    if column.looks:
        yield _total(column.looks[0][2], history)
    yield _shared(column.cells, history)
    until_ns = np.where(history.failed, np.fmin(failed_ns, ended_ns) - task.horizon_ns, np.inf)
    seen, there = ~(history.began_ns >= until_ns), (column.came_ns < until_ns).astype(float)
    fails, stays = seen & history.failed, seen & ~history.failed
    yield _separation("the presence of a value", there, fails, stays)


def _related(
    values: Floats, began_ns: Floats, ended_ns: Floats, owner: Ints | None = None
) -> float:
    """Return the rank correlation of values with ends or lifetimes, given starts; 0 if weak."""
    count = len(values) - (0 if owner is None else len(np.unique(owner)))
    if count < FEWEST:
        return 0.0
    found = max(
        partial_correlation(values, other, began_ns, owner)
        for other in (ended_ns, ended_ns - began_ns)
    )
    return found if clear(found, _RELATED, count) else 0.0


def _area(values: Floats, fails: Bools, stays: Bools) -> float:
    """Return the ROC AUC of those that fail against those that stay; one half with too few."""
    if min(fails.sum(), stays.sum()) < FEWEST:
        return 0.5
    return roc_auc(values[fails], values[stays])


def _separation(subject: str, values: Floats, fails: Bools, stays: Bools) -> str:
    """Return how values separate components that fail from those that stay, or ""."""
    area = 0.5 + abs(_area(values, fails, stays) - 0.5)
    if area < SEPARATED:
        return ""
    whom = f"the {fails.sum()} components that failed at any time from the others"
    return f"{subject} separates {whom}, ROC AUC {area:.3f}"


def _total(values: Floats, history: History) -> str:
    """Return how a number behaves as the total of failures per component, or "".

    An honest one relates to both halves of the trace alike: at equal values of it, their failures
    are uncorrelated or correlate positively. At equal sums they correlate negatively.
    """
    own = np.flatnonzero(~np.isnan(values))
    early, late = history.early[own], history.late[own]
    if (early + late >= 2).sum() < FEWEST:
        return ""
    order = np.argsort(values[own], kind="stable")
    opposed = -correlation(*(centred_ranks(np.diff(half[order])) for half in (early, late)))
    at_all = -correlation(centred_ranks(early), centred_ranks(late))
    if not clear(opposed, _OPPOSED, len(own)) or clear(2 * at_all, _OPPOSED, len(own)):
        return ""
    return (
        f"it behaves as a total, as failures of {len(own)} components in the two halves of the "
        f"trace have rank correlation {-opposed:.2f} at equal values"
    )


def _shared(cells: Sequence[object], history: History) -> str:
    """Return how sharing a value with others predicts failures, or ""."""
    own = [row for row, cell in enumerate(cells) if cell == cell]  # NaN is not
    number = {cell: place for place, cell in enumerate(dict.fromkeys(cells[row] for row in own))}
    group = np.array([number[cells[row]] for row in own], dtype=np.int64)
    failed_ns, failed = history.failed_ns[own], history.failed[own]
    share = share_of_others(group, failed_ns)
    fails, stays = failed & ~np.isnan(share), ~failed & ~np.isnan(share)
    if _area(share, fails, stays) >= SEPARATED:
        return _separation("the share of failures of others with its value", share, fails, stays)
    if len(np.unique(failed_ns[failed] // DAY_NS)) < FEWEST:
        return ""
    sizes = np.bincount(group, minlength=1)[group].astype(float)
    return _separation("the number of others with its value", sizes, failed, ~failed)


def _given_another(first: Mapping[str, Floats], history: History) -> dict[str, str]:
    """Return the columns that are leaky given another one, with the reason.

    Of two columns that leak together, such as the age at the end and the age at the start, the one
    that grows with the lifetime is flagged; else the one that separates better alone.
    """
    found: dict[str, str] = {}
    for name, other in permutations(first, 2):
        own = _both(first[name], first[other], history.ended)
        if name in found or len(own) < FEWEST:
            continue
        began_ns, beside = history.began_ns[own], first[other][own]
        pair = first[name][own], history.ended_ns[own] - began_ns
        related = correlation(*(centred_ranks(residual(one, began_ns, beside)) for one in pair))
        if related >= _RELATED_BESIDE:
            found[name] = (
                f"given {other}, its first value predicts the lifetime of {len(own)} components, "
                f"rank correlation {related:.2f}"
            )
    rest = {name: values for name, values in first.items() if name not in found}
    failed, valid = history.failed, {name: ~np.isnan(values) for name, values in rest.items()}
    separates = {
        name: abs(_area(values, valid[name] & failed, valid[name] & ~failed) - 0.5)
        for name, values in rest.items()
    }
    for name, other in permutations(rest, 2):
        own = _both(first[name], first[other], np.ones(len(failed), dtype=np.bool_))
        if name in found or len(own) < 2 * FEWEST or separates[other] > separates[name]:
            continue
        values, subject = residual(first[name][own], first[other][own]), "its first value"
        if why := _separation(f"given {other}, {subject}", values, failed[own], ~failed[own]):
            found[name] = why
    return found


def _both(values: Floats, others: Floats, among: Bools) -> Ints:
    """Return the components in which two columns have a value, or an even part of them."""
    own = np.flatnonzero(among & ~np.isnan(values) & ~np.isnan(others))
    return own[:: max(1, -(-len(own) // _MOST_PER_PAIR))]


def leaky_kinds(bundle: Bundle, task: Task, history: History, *, step_ns: int) -> list[Flag]:
    """Return the kinds of event, targets excluded, that only components have that fail later.

    A log written after a failure may date its entries back to the start of the failure, or before.
    Events less than ``step_ns`` before a failure are ignored: they are too late for a forecast.
    """
    start_ns, end_ns = bundle.manifest.start_ns, bundle.manifest.end_ns
    watched, failed = watch(bundle), history.failed
    before_ns = np.where(failed, history.failed_ns - step_ns, np.inf)
    early_ns = start_ns + _EARLY * (np.fmin(before_ns, end_ns) - start_ns)
    counts: dict[str, Floats] = {}
    for event in bundle.events():
        if not task.counts(event):
            rows = [*watched.rows_of(event.component)]
            struck, often = counts.setdefault(event.kind, np.zeros((2, len(failed))))
            struck[rows] = np.maximum(struck[rows], event.t_avail < before_ns[rows])
            often[rows] += event.t_avail < early_ns[rows]
    flags = _coincident(bundle, task) if task.kind == "detect" else {}
    for kind, (struck, often) in counts.items():
        if _area(struck, failed, ~failed) >= SEPARATED:
            flags[kind] = (
                f"such events occurred on {struck[failed].sum():.0f} of {failed.sum()} components "
                f"before they failed and on {struck[~failed].sum():.0f} of {(~failed).sum()} others"
            )
        elif _area(often, failed, ~failed) >= SEPARATED:
            subject = "their number in the first two thirds of a component's time"
            flags[kind] = _separation(subject, often, failed, ~failed)
    return [(kind, flags[kind]) for kind in counts if kind in flags]


def _coincident(bundle: Bundle, task: Task) -> dict[str, str]:
    """Return the kinds whose events coincide with incidents to detect, with the reason."""
    watched, start_ns, flags = watch(bundle), bundle.manifest.start_ns, {}
    stride_s = (bundle.manifest.end_ns - start_ns) / SECOND_NS + 3 * _AT_ONCE_S
    at_s: dict[str, list[float]] = {"": []}
    for event in bundle.events():
        own = at_s.setdefault("" if task.counts(event) else event.kind, [])
        second = (event.t_event - start_ns) / SECOND_NS
        own += [row * stride_s + second for row in watched.rows_of(event.component)]
    starts = np.sort(at_s.pop(""))
    for kind, times in at_s.items():
        close, met = _near(np.array(times), starts), _near(starts, np.sort(times))
        if close >= max(FEWEST, SEPARATED * len(times)) and met >= SEPARATED * len(starts):
            flags[kind] = (
                f"{close} of {len(times)} such events coincide with the start of an incident to "
                f"detect, and {met} of {len(starts)} such incidents have one"
            )
    return flags


def _near(at_s: Floats, others_s: Floats) -> int:
    """Return how many times are near one of others, which are sorted."""
    first, last = (np.searchsorted(others_s, at_s + one) for one in (-_AT_ONCE_S, _AT_ONCE_S))
    return int(np.count_nonzero(last > first))


def leaky_service(bundle: Bundle, history: History, *, tick_ns: int) -> list[Flag]:
    """Return a flag if components that start late fail, and the others hardly ever.

    An extract with only the last weeks of failed components, and all of some healthy ones, is such
    a trace. A real young fleet fails more, but old parts fail too. Only the second half counts: by
    then an extract has no failed components left that were present at its start.
    """
    from scipy.special import pdtr

    began_ns, failed_ns = history.began_ns, history.failed_ns
    middle_ns = (bundle.manifest.start_ns + bundle.manifest.end_ns) // 2
    first_ns = np.fmin.reduce(began_ns, initial=np.inf)
    late = began_ns > first_ns + max(AT_ONCE_S * SECOND_NS, 1.5 * tick_ns)
    early = ~np.isnan(began_ns) & ~late
    until_ns = np.fmin(history.ended_ns, failed_ns)
    watched = np.clip(until_ns - np.fmax(began_ns, middle_ns), 0.0, None)
    failed = (failed_ns >= middle_ns) & (failed_ns >= began_ns)
    failures = int(failed[late].sum()), int(failed[early].sum())
    if failures[0] < FEWEST or watched[late].sum() == 0:
        return []
    usual = failures[0] / watched[late].sum() / _TIMES
    if pdtr(failures[1], usual * watched[early].sum()) >= _CHANCE:
        return []
    why = (
        f"{failures[0]} of {late.sum()} components that start later failed in the second half, "
        f"{failures[1]} of {early.sum()} present from the start"
    )
    return [(IN_SERVICE, why)]


def leaky_returns(seen: Seen, metrics: Sequence[str], task: Task) -> list[Flag]:
    """Return the metrics whose first value after a return reveals the next failure.

    A column with the remaining time starts anew with each return. Apart from its time and
    component, nothing honest relates the value to a failure more than a horizon later.
    """
    flags = []
    for metric, first, came_ns in zip(metrics, seen.returned.T, seen.returned_ns.T, strict=True):
        far = np.flatnonzero(seen.turns.failed_ns - came_ns > task.horizon_ns)
        owner, failed_ns = seen.turns.owner[far], seen.turns.failed_ns[far]
        if found := _related(first[far], came_ns[far], failed_ns, owner):
            flags.append(
                (metric, f"its first value after each of {len(far)} returns predicts the time to "
                 f"the next failure, rank correlation {found:.2f}")
            )  # fmt: skip
    return flags
