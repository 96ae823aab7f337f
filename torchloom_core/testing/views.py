"""Build a :class:`FleetView` from plain arrays."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from torchloom_core.config.schema import Costs
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.arrays import Floats, frozen
from torchloom_core.interface.view import FleetView, LighthouseRows
from torchloom_core.live.fleet.rings import Rings
from torchloom_core.wire.events import Fault, Forecast
from torchloom_core.wire.limits import KnobValue
from torchloom_core.wire.links import Link, Measured
from torchloom_core.wire.messages import KnobSpec, Note

EPOCH_S = 1_700_000_000.0
"""The default time of a view: 14 November 2023, 22:13:20 UTC."""


class LinkSample(NamedTuple):
    """A link measurement, ``age_s`` ago; a ``spread`` of None is from a single burst.

    Examples
    --------
    >>> from torchloom_core.testing import LinkSample, view_of
    >>> view = view_of(workers=2, links={("w0", "w1"): LinkSample(25e6, 0.0004)})
    >>> view.links([0, 1]).latency_s
    array([[   nan, 0.0004],
           [   nan,    nan]])
    """

    bytes_per_s: float
    latency_s: float
    age_s: float = 0.0
    spread: float | None = 0.0


def view_of(
    metrics: Mapping[str, ArrayLike] | None = None,
    *,
    workers: int | Sequence[str] | None = None,
    group: Sequence[str] | None = None,
    node: Sequence[str] | None = None,
    rack: Sequence[str] | None = None,
    labels: Sequence[Mapping[str, str | float]] | None = None,
    state: str | Sequence[str] = "training",
    step: ArrayLike = 100,
    heartbeat_age_s: ArrayLike = 0.0,
    progress_age_s: ArrayLike = 0.0,
    watched_s: ArrayLike = np.nan,
    now_s: float = EPOCH_S,
    tick_s: float = 1.0,
    stale_after_s: float = 10.0,
    knob_specs: Iterable[KnobSpec] = (),
    knob_values: Sequence[Mapping[str, KnobValue]] | None = None,
    forecasts: Iterable[Forecast] = (),
    predictors: Iterable[str] = (),
    faults: Iterable[Fault] = (),
    costs: Costs | None = None,
    cordoned: Iterable[str] = (),
    lighthouse: Mapping[str, Iterable[str]] | None = None,
    links: Mapping[tuple[str, str], LinkSample] | None = None,
    can_be_probed: Sequence[bool] | None = None,
    notes: Mapping[str, Mapping[int, Note]] | None = None,
) -> FleetView:
    """Return the view of a fleet with this data.

    Telemetry uses the same ring buffers as in the Weaver, so staleness, ages and the errors for
    undeclared metrics are the same.

    Parameters
    ----------
    metrics : dict of str to ``(workers,)`` or ``(workers, samples)``
        Oldest sample first, ``tick_s`` apart, the last one at ``now_s``; NaN for no sample.
    workers : int or sequence of str, optional
        Ids, or a number (then ``w0``, ``w1``, ...); default: as many as the metrics have.
    group, node, rack : sequence of str, optional
        Default: a group ``g<i>`` and a node ``n<i>`` for each worker, and no rack.
    labels : sequence of mapping of str to (str or float), optional
        Fixed properties of each worker; default: none.
    state : str or sequence of str
        One for all, or one for each.
    step, heartbeat_age_s, progress_age_s, watched_s : scalar or ``(workers,)``
        One for all, or one for each.
    now_s : float
        Time of the tick, seconds since the Unix epoch.
    tick_s : float
        Seconds between ticks, and between samples.
    stale_after_s : float
        Age above which ``latest`` gives NaN, seconds.
    knob_specs : iterable of KnobSpec
        The knobs of the workers.
    knob_values : sequence of mapping of str to KnobValue, optional
        The present values of each worker, by knob.
    forecasts : iterable of Forecast
        The newest forecast of each predictor.
    predictors : iterable of str
        Further declared predictors, which have no forecast yet.
    faults : iterable of Fault
        Oldest first.
    costs : Costs, optional
        Default: the default costs of the config.
    cordoned : iterable of str
        The cordoned nodes.
    lighthouse : mapping of str to iterable of str, optional
        The report of torchLoom's lighthouse: ``failed``, ``silent`` and ``lost`` workers, and
        ``member``, by default all that are not lost.
    links : mapping of (sender, receiver) to LinkSample, optional
        The measured links.
    can_be_probed : sequence of bool, optional
        Whether each worker can be probed; default: none can.
    notes : mapping of str to mapping of int to Note, optional
        The declared kinds, and for each the newest note by row.

    Raises
    ------
    ValueError
        If a metric does not have one row per worker.

    Examples
    --------
    >>> from torchloom_core.testing import view_of
    >>> view = view_of({"loss": [[3.0, 2.5], [3.1, float("nan")]]}, tick_s=5.0)
    >>> view.latest("loss")
    array([2.5, 3.1])
    >>> view.age_s("loss")
    array([0., 5.])
    """
    tables = {name: _table(values) for name, values in (metrics or {}).items()}
    ids = _ids(workers, tables)
    n = len(ids)
    now_ns = round(now_s * SECOND_NS)
    rings = _rings(tables, n, now_ns, tick_s=tick_s, stale_after_s=stale_after_s)
    all_faults = tuple(faults)
    newest = {forecast.predictor: forecast for forecast in forecasts}
    return FleetView(
        now_ns=now_ns,
        tick_s=tick_s,
        workers=ids,
        group=_column(group, [f"g{i}" for i in range(n)]),
        node=_column(node, [f"n{i}" for i in range(n)]),
        rack=_column(rack, [""] * n),
        labels=tuple(labels or [{}] * n),
        state=_column([state] * n if isinstance(state, str) else state, []),
        step=np.broadcast_to(np.asarray(step, dtype=np.int64), (n,)),
        heartbeat_age_s=_each(heartbeat_age_s, n),
        progress_age_s=_each(progress_age_s, n),
        watched_s=_each(watched_s, n),
        metrics=rings,
        knob_specs={spec.name: spec for spec in knob_specs},
        knob_values=tuple(knob_values or [{}] * n),
        forecasts=newest,
        predictors=newest.keys() | set(predictors),
        faults=all_faults,
        faults_of=_by_place(all_faults),
        costs=costs or Costs(),
        cordoned=frozenset(cordoned),
        lighthouse=None if lighthouse is None else _lighthouse(lighthouse, ids),
        links_of=_links_of(links or {}, now_ns),
        can_be_probed=None if can_be_probed is None else frozen(np.array(can_be_probed, bool)),
        notes=notes,
    )


def _links_of(
    links: Mapping[tuple[str, str], LinkSample], now_ns: int
) -> dict[str, dict[str, Link]]:
    links_of: dict[str, dict[str, Link]] = {}
    for (sender, receiver), sample in links.items():
        links_of.setdefault(sender, {})[receiver] = Link(
            sender=sender,
            sender_node="n0",
            receiver=receiver,
            receiver_node="n1",
            measured=Measured(
                bytes_per_s=sample.bytes_per_s, latency_s=sample.latency_s, spread=sample.spread
            ),
            ts_ns=now_ns - round(sample.age_s * SECOND_NS),
        )
    return links_of


def _lighthouse(seen: Mapping[str, Iterable[str]], workers: Sequence[str]) -> LighthouseRows:
    rows = {
        name: np.isin(workers, list(seen.get(name, ())))
        for name in ("member", "failed", "silent", "lost")
    }
    if "member" not in seen:
        rows["member"] = ~rows["lost"]
    return LighthouseRows(quorum_id=1, waiting_s=1.0, **rows)


def _table(values: ArrayLike) -> Floats:
    table = np.asarray(values, dtype=np.float64)
    return table[:, None] if table.ndim == 1 else table


def _ids(workers: int | Sequence[str] | None, tables: Mapping[str, Floats]) -> tuple[str, ...]:
    if workers is None:
        workers = len(next(iter(tables.values()))) if tables else 0
    ids = [f"w{i}" for i in range(workers)] if isinstance(workers, int) else workers
    for name, table in tables.items():
        if len(table) != len(ids):
            raise ValueError(f"{name}: need {len(ids)} rows, one per worker, was {len(table)}")
    return tuple(ids)


def _column(values: Sequence[str] | None, otherwise: list[str]) -> tuple[str, ...]:
    return tuple(otherwise if values is None else values)


def _by_place(faults: Sequence[Fault]) -> dict[str, tuple[Fault, ...]]:
    of: dict[str, list[Fault]] = {}
    for fault in faults:
        of.setdefault(fault.place, []).append(fault)
    return {place: tuple(there) for place, there in of.items()}


def _each(values: ArrayLike, workers: int) -> Floats:
    """Return ``(workers,)`` read-only values."""
    return np.broadcast_to(np.asarray(values, dtype=np.float64), (workers,))


def _rings(
    tables: Mapping[str, Floats], workers: int, now_ns: int, *, tick_s: float, stale_after_s: float
) -> Rings:
    """Return ring buffers with these samples, the newest in the last column of each table."""
    columns = {name: max(1, table.shape[1]) for name, table in tables.items()}
    rings = Rings(columns, tables, tick_s=tick_s, stale_after_s=stale_after_s)
    rings.grow(workers)
    ticks = max(columns.values(), default=1)
    values = np.full((len(tables), ticks, workers), np.nan)
    for name, table in tables.items():
        values[rings.number_of[name], ticks - table.shape[1] :] = table.T
    ages_s = [tick * tick_s for tick in reversed(range(ticks))]
    rings.extend(values, np.array([now_ns - round(s * SECOND_NS) for s in ages_s], dtype=np.int64))
    rings.now_ns, rings.workers = now_ns, workers
    return rings
