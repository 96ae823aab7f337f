"""Bandwidth of the links between the ranks of a run, by the trace, and as a probe measures it."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from torchloom_core.floor.clock import SECOND_NS, moment_text
from torchloom_core.floor.errors import TraceError
from torchloom_core.floor.suggest import listed
from torchloom_core.interface.arrays import Floats, Ints
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import LINK_METRIC
from torchloom_core.lab.trace.bundle.telemetry import codes, numbers
from torchloom_core.lab.trace.feed.watched import watch
from torchloom_core.wire.links import Measured

_NAMED = 3
_BURSTS = 5
_MEASURES_S = 2.0
"""Maximum duration of a probe, seconds."""


class Bottleneck:
    """The slowest link of a ring over time; the recording is repeated at its end, after ``span_s``.

    ``bytes_per_s`` are positive, each from its time in ``at_s`` on, ascending from 0. ``in_all`` is
    what it can carry in one pass of the recording, bytes.
    """

    def __init__(self, at_s: Sequence[float], bytes_per_s: Sequence[float], span_s: float) -> None:
        self.at_s, self.bytes_per_s, self.span_s = tuple(at_s), tuple(bytes_per_s), span_s
        lengths = [until - begin for begin, until in pairwise((*at_s, span_s))]
        parts = (length * rate for length, rate in zip(lengths, bytes_per_s, strict=True))
        *self._carried, self.in_all = accumulate(parts, initial=0.0)

    def carried(self, ts_s: float) -> float:
        """Return the bytes that it can carry from 0 to ``ts_s``."""
        passes, rest_s = divmod(ts_s, self.span_s)
        piece = bisect_right(self.at_s, rest_s) - 1
        within = (rest_s - self.at_s[piece]) * self.bytes_per_s[piece]
        return passes * self.in_all + self._carried[piece] + within

    def when(self, sent_bytes: float) -> float:
        """Return the time by which it can carry ``sent_bytes``, seconds."""
        passes, rest = divmod(sent_bytes, self.in_all)
        piece = bisect_right(self._carried, rest) - 1
        within_s = (rest - self._carried[piece]) / self.bytes_per_s[piece]
        return passes * self.span_s + self.at_s[piece] + within_s


@dataclass(frozen=True)
class Links:
    """The ranks of a bandwidth trace, their links from ``start_ns`` on, and the slowest link.

    ``series`` has time and bandwidth of the components that the link of each rank depends on.
    """

    workers: tuple[str, ...]
    nodes: tuple[str, ...]
    racks: tuple[str, ...]
    start_ns: int
    bottleneck: Bottleneck
    series: Sequence[Sequence[tuple[Ints, Floats]]]

    def bytes_per_s(self, row: int, ts_s: float) -> float:
        """Return the bandwidth of a rank's own link ``ts_s`` after the start."""
        now_ns = self.start_ns + round(ts_s % self.bottleneck.span_s * SECOND_NS)
        return min(
            float(rates[np.searchsorted(at_ns, now_ns, side="right") - 1])
            for at_ns, rates in self.series[row]
        )


def links_of(bundle: Bundle, from_ns: int | None = None) -> Links:
    """Return the links of the watched components of a trace, from ``from_ns`` on.

    A value holds until the next valid one. A component shared by several ranks, such as a switch,
    is a link of each of them. TraceError if a rank has no link, there are fewer than two ranks, or
    a bandwidth is not positive.
    """
    watched, manifest = watch(bundle), bundle.manifest
    names = tuple(name for name in bundle.measured if watched.rows_of(name))
    at_ns, component, value = _values(bundle, names)
    series: list[list[tuple[Ints, Floats]]] = [[] for _ in watched.ids]
    for number in np.unique(component).tolist():
        own = component == number
        for row in watched.rows_of(names[number]):
            series[row].append((at_ns[own], value[own]))
    without = [name for name, links in zip(watched.ids, series, strict=True) if not links]
    if without:
        raise TraceError(
            f"{bundle.path}: need {LINK_METRIC} of every worker, was none for "
            f"{listed(without, _NAMED)}"
        )
    if len(watched.ids) < 2:
        raise TraceError(
            f"{bundle.path}: need {LINK_METRIC} of at least 2 workers, was {len(watched.ids)}: "
            f"an allreduce needs two ranks"
        )
    _refuse_dead(bundle, at_ns, [names[number] for number in component.tolist()], value)
    first_ns = max(int(times_ns[0]) for links in series for times_ns, _ in links)
    start_ns = max(first_ns, manifest.start_ns, from_ns or manifest.start_ns)
    if start_ns >= manifest.end_ns:
        raise TraceError(
            f"{bundle.path}: need time in which all links are known, was none after "
            f"{moment_text(start_ns)}"
        )
    changes = list(_slowest(at_ns, component, value, start_ns))
    span_s = (manifest.end_ns - start_ns) / SECOND_NS
    return Links(
        workers=watched.ids,
        nodes=watched.node,
        racks=watched.rack,
        start_ns=start_ns,
        bottleneck=Bottleneck(
            [(ts_ns - start_ns) / SECOND_NS for ts_ns, _ in changes],
            [rate for _, rate in changes],
            span_s,
        ),
        series=series,
    )


def _values(bundle: Bundle, names: tuple[str, ...]) -> tuple[Ints, NDArray[np.int64], Floats]:
    """Return times, components and values of all valid samples, in order of time."""
    tables = list(bundle.telemetry(metrics=(LINK_METRIC,)))
    at_ns = np.concatenate([numbers(t["t_event"]) for t in tables] or [np.zeros(0, np.int64)])
    component = np.concatenate([codes(t["component"], names) for t in tables] or [at_ns])
    value = np.concatenate([numbers(t["value"]) for t in tables] or [np.zeros(0)])
    valid = np.concatenate([numbers(t["valid"]) for t in tables] or [np.zeros(0, np.bool_)])
    usable = valid & ~np.isnan(value) & (component >= 0) & (at_ns < bundle.manifest.end_ns)
    order = np.argsort(at_ns[usable], kind="stable")
    return at_ns[usable][order], component[usable][order], value[usable][order]


def _refuse_dead(bundle: Bundle, at_ns: Ints, component: Sequence[str], value: Floats) -> None:
    dead = np.flatnonzero(~(value > 0) | np.isinf(value))
    if len(dead):
        first = int(dead[0])
        raise TraceError(
            f"{bundle.path}: need {LINK_METRIC} > 0, was {value[first]:g} for {component[first]} "
            f"at {moment_text(int(at_ns[first]))}: a step over it would never end"
        )


def _slowest(
    at_ns: Ints, component: NDArray[np.int64], value: Floats, start_ns: int
) -> Iterator[tuple[int, float]]:
    """Yield time and value of each change of the least of all values, from the start on."""
    present: dict[int, float] = {}
    last = None
    times = at_ns.tolist()
    for ts_ns, number, rate, next_ns in zip(
        times, component.tolist(), value.tolist(), [*times[1:], None], strict=True
    ):
        present[number] = rate
        if next_ns is not None and (next_ns == ts_ns or next_ns <= start_ns):
            continue
        slowest = min(present.values())
        if slowest != last:
            last = slowest
            yield max(ts_ns, start_ns), slowest


def probe_link(
    bytes_per_s: float,
    latency_s: float,
    probe_bytes: int,
    noise: float,
    random: np.random.Generator,
) -> tuple[Measured, float]:
    """Return the measurement, and its duration in seconds.

    ``noise`` is the relative variation of bursts and latencies: lognormal, with mean 1.
    """
    burst_s = probe_bytes / _BURSTS / bytes_per_s
    begun = min(_BURSTS, 1 + int(_MEASURES_S / burst_s))
    drawn = np.exp(noise * random.standard_normal(1 + _BURSTS) - noise**2 / 2)
    of_latency, first, *others = drawn.tolist()
    timed = others[: begun - 1] or [first]  # the first only opens the window
    middle = float(np.median(timed))
    measured = Measured(
        bytes_per_s=bytes_per_s * middle,
        latency_s=latency_s * of_latency,
        spread=float(np.std(timed)) / middle if len(timed) > 1 else None,
    )
    return measured, min(_BURSTS * burst_s, _MEASURES_S)
