"""Build a :class:`FleetView` from plain arrays."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from torchloom_core.config.schema import Costs
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.arrays import Floats, frozen
from torchloom_core.interface.programs import SplitProgram
from torchloom_core.interface.view import FleetView
from torchloom_core.interface.view_parts import (
    Conditions,
    KnownFaults,
    KnownKnobs,
    LighthouseRows,
    Roster,
)
from torchloom_core.live.fleet.rings import Rings
from torchloom_core.wire.events import Fault, Forecast
from torchloom_core.wire.limits import KnobValue
from torchloom_core.wire.links import Link, Measured
from torchloom_core.wire.messages import KnobSpec, Note
from torchloom_core.wire.placement import TRAINER, Placement

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


class ViewArguments(TypedDict, total=False):
    """What :func:`view_of` takes besides metrics, workers and times; all optional.

    A sequence has one entry for each worker, a scalar is for all.

    Attributes
    ----------
    role, group, node, rack : sequence of str
        Default: role ``trainer``, a group ``g<i>`` and a node ``n<i>`` each, and no rack.
    stage : sequence of int
        Default: 0.
    labels : sequence of mapping of str to (str or float)
        Fixed properties; default: none.
    state : str or sequence of str
        Default: ``training``.
    step, heartbeat_age_s, progress_age_s, watched_s : scalar or ``(workers,)``
        Default: step 100, ages of 0 and an unknown time watched.
    knob_specs : iterable of KnobSpec
        The knobs of the workers.
    knob_values : sequence of mapping of str to KnobValue
        Their present values, by knob.
    forecasts : iterable of Forecast
        The newest forecast of each predictor.
    predictors : iterable of str
        Further declared predictors, which have no forecast yet.
    faults : iterable of Fault
        Oldest first.
    costs : Costs
        Default: the default costs of the config.
    cordoned : iterable of str
        The cordoned nodes.
    lighthouse : mapping of str to iterable of str
        The report of torchLoom's lighthouse: ``failed``, ``silent`` and ``lost`` workers, and
        ``member``, by default all that are not lost.
    links : mapping of (sender, receiver) to LinkSample
        The measured links.
    can_be_probed : sequence of bool
        Default: none can.
    notes : mapping of str to mapping of int to Note
        The declared kinds, and for each the newest note by row.
    programs : iterable of SplitProgram
        Programs that are split over workers.
    """

    role: Sequence[str]
    group: Sequence[str]
    stage: Sequence[int]
    node: Sequence[str]
    rack: Sequence[str]
    labels: Sequence[Mapping[str, str | float]]
    state: str | Sequence[str]
    step: ArrayLike
    heartbeat_age_s: ArrayLike
    progress_age_s: ArrayLike
    watched_s: ArrayLike
    knob_specs: Iterable[KnobSpec]
    knob_values: Sequence[Mapping[str, KnobValue]]
    forecasts: Iterable[Forecast]
    predictors: Iterable[str]
    faults: Iterable[Fault]
    costs: Costs | None
    cordoned: Iterable[str]
    lighthouse: Mapping[str, Iterable[str]]
    links: Mapping[tuple[str, str], LinkSample]
    can_be_probed: Sequence[bool]
    notes: Mapping[str, Mapping[int, Note]]
    programs: Iterable[SplitProgram]


def view_of(
    metrics: Mapping[str, ArrayLike] | None = None,
    *,
    workers: int | Sequence[str] | None = None,
    now_s: float = EPOCH_S,
    tick_s: float = 1.0,
    stale_after_s: float = 10.0,
    **given: Unpack[ViewArguments],
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
    now_s : float
        Time of the tick, seconds since the Unix epoch.
    tick_s : float
        Seconds between ticks, and between samples.
    stale_after_s : float
        Age above which ``latest`` gives NaN, seconds.
    **given
        Columns and facts, as :class:`ViewArguments` lists them.

    Raises
    ------
    ValueError
        If a metric does not have one row per worker.
    TypeError
        If an argument is none of :class:`ViewArguments`.

    Examples
    --------
    >>> from torchloom_core.testing import view_of
    >>> view = view_of({"loss": [[3.0, 2.5], [3.1, float("nan")]]}, tick_s=5.0)
    >>> view.latest("loss")
    array([2.5, 3.1])
    >>> view.age_s("loss")
    array([0., 5.])
    """
    if unknown := given.keys() - ViewArguments.__annotations__.keys():
        raise TypeError(f"view_of: unknown argument {', '.join(sorted(unknown))}")
    tables = {name: _table(values) for name, values in (metrics or {}).items()}
    ids = _ids(workers, tables)
    now_ns = round(now_s * SECOND_NS)
    faults = tuple(given.get("faults", ()))
    lighthouse = given.get("lighthouse")
    undecided: dict[str, Forecast | None] = dict.fromkeys(given.get("predictors", ()))
    view = FleetView(
        now_ns=now_ns,
        tick_s=tick_s,
        costs=given.get("costs") or Costs(),
        roster=_roster(ids, given),
        conditions=_conditions(len(ids), given),
        metrics=_rings(tables, len(ids), now_ns, tick_s=tick_s, stale_after_s=stale_after_s),
        knobs=KnownKnobs(
            {spec.name: spec for spec in given.get("knob_specs", ())},
            tuple(given.get("knob_values") or [{}] * len(ids)),
        ),
        forecasts=undecided | {one.predictor: one for one in given.get("forecasts", ())},
        faults=KnownFaults(faults, _by_place(faults)),
        cordoned=frozenset(given.get("cordoned", ())),
        lighthouse=None if lighthouse is None else _lighthouse(lighthouse, ids),
        links_of=_links_of(given.get("links") or {}, now_ns),
        notes=given.get("notes") or {},
    )
    view.programs = {program.role: program for program in given.get("programs", ())}
    return view


def _roster(ids: tuple[str, ...], given: ViewArguments) -> Roster:
    n = len(ids)
    placement = [
        Placement(run="run", role=role, group=group, stage=stage, rank=0, node=node, rack=rack)
        for role, group, stage, node, rack in zip(
            given.get("role") or [TRAINER] * n,
            given.get("group") or [f"g{i}" for i in range(n)],
            given.get("stage") or [0] * n,
            given.get("node") or [f"n{i}" for i in range(n)],
            given.get("rack") or [""] * n,
            strict=True,
        )
    ]
    can_be_probed = given.get("can_be_probed") or [False] * n
    labels = tuple(given.get("labels") or [{}] * n)
    return Roster(ids, tuple(placement), labels, frozen(np.array(can_be_probed, bool)))


def _conditions(n: int, given: ViewArguments) -> Conditions:
    state = given.get("state", "training")
    return Conditions(
        state=tuple([state] * n if isinstance(state, str) else state),
        step=np.broadcast_to(np.asarray(given.get("step", 100), dtype=np.int64), (n,)),
        heartbeat_age_s=_each(given.get("heartbeat_age_s", 0.0), n),
        progress_age_s=_each(given.get("progress_age_s", 0.0), n),
        watched_s=_each(given.get("watched_s", np.nan), n),
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
