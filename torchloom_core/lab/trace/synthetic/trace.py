"""Write synthetic trace bundles: of a fleet that fails, and of links whose bandwidth varies."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from torchloom_core.config.ranges import Positive, Share
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import TraceError
from torchloom_core.interface.arrays import Floats, Ints
from torchloom_core.lab.trace.bundle.schema import LINK_METRIC, Component
from torchloom_core.lab.trace.bundle.telemetry import telemetry_table
from torchloom_core.lab.trace.bundle.writer import BundleWriter, refuse_to_replace
from torchloom_core.lab.trace.synthetic.faults import (
    ALL_NODES,
    ECC,
    NIC,
    POWER,
    TEMPERATURE,
    Faults,
    Sign,
    Silence,
    draw_faults,
)
from torchloom_core.lab.trace.synthetic.parameters import (
    START_NS,
    Parameters,
    components,
    generator,
    job_rows,
    node_name,
)

METRICS = ("gpu_temp_celsius", "gpu_power_watts", "gpu_ecc_corrected_total", "nic_errors_per_min")
LOAD_DEPENDENT = METRICS[:2]

_ROWS = 1 << 20
_SCRAPE_NS = SECOND_NS
"""From a sample to its availability."""

_DAY_NS = 86_400 * SECOND_NS
_GPU_METRICS = slice(TEMPERATURE, ECC + 1)

_Span = TypeVar("_Span", Sign, Silence)


def tables(parameters: Parameters, faults: Faults) -> Iterator[Any]:
    """Yield telemetry sorted by ``t_avail``, in tables that do not grow with the span."""
    step_ns = round(parameters.interval_s * SECOND_NS)
    if not step_ns:
        return
    names = [node_name(node) for node in range(parameters.nodes)]
    sensors = _Sensors(parameters, faults)
    at_once = max(1, _ROWS // (len(METRICS) * parameters.nodes))
    stop_ns = parameters.end_ns - _SCRAPE_NS + 1
    for first_ns in range(START_NS, stop_ns, at_once * step_ns):
        last_ns = min(first_ns + at_once * step_ns, stop_ns)
        t_event: Ints = np.arange(first_ns, last_ns, step_ns, dtype=np.int64)
        values, there = sensors.read(t_event)
        cells = np.flatnonzero(there)
        t, metric, node = np.unravel_index(cells, there.shape)
        value = values.ravel()[cells]
        yield telemetry_table(
            t_event[t], t_event[t] + _SCRAPE_NS, (node, names), (metric, METRICS), value
        )


class _Sensors:
    """The sensors of all nodes, read forward in time."""

    def __init__(self, parameters: Parameters, faults: Faults) -> None:
        self._random = generator(parameters.seed, "telemetry")
        nodes = parameters.nodes
        self._minutes = parameters.interval_s / 60
        self._load = np.zeros(nodes)
        self._load[list(parameters.job_nodes)] = 1.0
        self._coolness = self._random.normal(0.0, 2.0, nodes)
        self._phase = self._random.uniform(0.0, 0.2, nodes)
        self._ecc_per_minute = self._random.lognormal(-5.0, 1.0, nodes)
        self._ecc: Floats = np.zeros(nodes)
        self._signs: _Spans[Sign] = _Spans(faults.signs)
        self._silences: _Spans[Silence] = _Spans(faults.silences)

    def read(self, t_event: Ints) -> tuple[Floats, NDArray[np.bool_]]:
        """Return ``(samples, metrics, nodes)`` values, and whether each is present."""
        shape = (len(t_event), len(METRICS), len(self._load))
        there = np.ones(shape, dtype=np.bool_)
        for silence, samples in self._silences.between(t_event):
            columns = _GPU_METRICS if silence.gpus_only else slice(None)
            nodes = slice(None) if silence.node == ALL_NODES else silence.node
            there[samples, columns, nodes] = False
        rise = np.zeros(shape)
        for sign, samples in self._signs.between(t_event):
            share = (t_event[samples] - sign.from_ns) / (sign.until_ns - sign.from_ns)
            for column in sign.metrics:
                rise[samples, column, sign.node] += share
        return self._values(t_event, rise), there

    def _values(self, t_event: Ints, rise: Floats) -> Floats:
        random, load = self._random, self._load
        shape = (len(t_event), len(load))
        day = np.sin(2 * np.pi * ((t_event % _DAY_NS) / _DAY_NS)[:, None] + self._phase)
        values = np.empty_like(rise)
        temperature = 34.0 + 28.0 * load + self._coolness + 2.5 * day + random.normal(size=shape)
        values[:, TEMPERATURE] = np.round(4 * (temperature + 14.0 * rise[:, TEMPERATURE])) / 4
        power = 95.0 + 560.0 * load + 8.0 * day + random.normal(0.0, 12.0, shape)
        values[:, POWER] = np.round(power + 60.0 * rise[:, POWER])
        corrected = random.poisson(self._minutes * (self._ecc_per_minute + 2.0 * rise[:, ECC]))
        values[:, ECC] = self._ecc + np.cumsum(corrected, axis=0)
        self._ecc = values[-1, ECC].copy()
        values[:, NIC] = random.poisson(0.02 + 5.0 * rise[:, NIC])
        return values


class _Spans(Generic[_Span]):
    """Index of signs or silences by time."""

    def __init__(self, spans: Sequence[_Span]) -> None:
        self._spans: Sequence[_Span] = spans
        self._from_ns = np.array([span.from_ns for span in spans], dtype=np.int64)
        self._until_ns = np.array([span.until_ns for span in spans], dtype=np.int64)

    def between(self, t_event: Ints) -> Iterator[tuple[_Span, slice]]:
        """Yield the spans that contain some of ``(samples,)`` times, and those times."""
        touches = (self._from_ns <= t_event[-1]) & (self._until_ns > t_event[0])
        for index in np.flatnonzero(touches).tolist():
            span = self._spans[index]
            begin, end = np.searchsorted(t_event, [span.from_ns, span.until_ns])
            yield span, slice(int(begin), int(end))


def synthesize(out: Path, parameters: Parameters, *, force: bool = False) -> None:
    """Write the bundle ``out``, the same bytes for the same parameters, or raise TraceError."""
    refuse_to_replace(out, force=force)
    if parameters.racks > parameters.nodes:
        raise TraceError(
            f"{out}: need racks <= nodes, was {parameters.racks} racks, {parameters.nodes} nodes"
        )
    faults = draw_faults(parameters)
    with BundleWriter(
        out,
        name=out.stem,
        start_ns=START_NS,
        end_ns=parameters.end_ns,
        source="torchloom trace synthesize",
        licence="Apache-2.0",
        synthetic=True,
        load_dependent=LOAD_DEPENDENT if parameters.interval_s else (),
        notes=msgspec.json.encode(parameters).decode(),
        force=force,
    ) as writer:
        for row in (*components(parameters), *job_rows(parameters), *faults.events):
            writer.add(row)
        for table in tables(parameters, faults):
            writer.telemetry(table)


_BYTES_PER_MBIT = 125_000.0
_MOST_VALUES = 50_000_000


class BandwidthParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The links and how their bandwidth changes."""

    shape: Literal["steps", "sinus", "failing"] = "steps"
    """``steps``: the levels in turn, ``hold_s`` each, repeated; ``sinus``: between the highest and
    the lowest level, half a period in ``hold_s``; ``failing``: the link of the last worker falls
    from the first level to the lowest, the others stay at the first."""
    mbit_per_s: Annotated[tuple[Positive, ...], msgspec.Meta(min_length=1, max_length=1000)] = (
        1000.0,
        200.0,
        50.0,
        1000.0,
    )
    """The levels."""
    hold_s: Positive = 60.0
    duration_s: Positive = 240.0
    workers: Annotated[int, msgspec.Meta(ge=2, le=100_000)] = 4
    interval_s: Positive = 1.0
    """Between two values of a link."""
    jitter: Share = 0.0
    """Lognormal relative variation of each value."""
    unequal: Share = 0.0
    """Lognormal relative difference between links, constant over time."""
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0


def synthesize_bandwidth(
    out: Path, parameters: BandwidthParameters, *, force: bool = False
) -> None:
    """Write the bundle ``out``, the same bytes for the same parameters, or raise TraceError."""
    samples = parameters.duration_s / parameters.interval_s
    if samples * parameters.workers > _MOST_VALUES:
        raise TraceError(
            f"{out}: need at most {_MOST_VALUES:,} values (duration / interval * workers), was "
            f"{samples * parameters.workers:,.0f}"
        )
    names = [f"w{worker}" for worker in range(parameters.workers)]
    with BundleWriter(
        out,
        name=out.stem,
        start_ns=START_NS,
        end_ns=START_NS + round(parameters.duration_s * SECOND_NS),
        source="torchloom trace bandwidth",
        licence="Apache-2.0",
        synthetic=True,
        notes=msgspec.json.encode(parameters).decode(),
        force=force,
    ) as writer:
        for name in names:
            writer.add(Component(id=name, kind="node"))
        writer.telemetry(_table(parameters, names))


def _table(parameters: BandwidthParameters, names: list[str]) -> pa.Table:
    at_s: Floats = np.arange(0.0, parameters.duration_s, parameters.interval_s)
    random = generator(parameters.seed, "bandwidth")
    shape = len(at_s), parameters.workers
    apart = _spread(random.standard_normal(parameters.workers), parameters.unequal)
    jitter = _spread(random.standard_normal(shape), parameters.jitter)
    mbit = _SHAPES[parameters.shape](at_s, parameters) * apart * jitter
    at_ns: Ints = START_NS + np.round(at_s * SECOND_NS).astype(np.int64)
    stamps = np.repeat(at_ns, parameters.workers)
    workers = np.tile(np.arange(parameters.workers), len(at_s))
    value = (mbit * _BYTES_PER_MBIT).ravel()
    return telemetry_table(
        stamps, stamps, (workers, names), (np.zeros_like(workers), [LINK_METRIC]), value
    )


def _spread(normal: Floats, by: float) -> Floats:
    return np.exp(by * normal - by**2 / 2)


def _steps(at_s: Floats, parameters: BandwidthParameters) -> Floats:
    levels = np.asarray(parameters.mbit_per_s)
    # A moment on the edge of a level belongs to the next one, however it is rounded.
    turn = np.floor(at_s / parameters.hold_s + 1e-9).astype(np.int64)
    return np.repeat(levels[turn % len(levels), None], parameters.workers, axis=1)


def _sinus(at_s: Floats, parameters: BandwidthParameters) -> Floats:
    high, low = np.log(max(parameters.mbit_per_s)), np.log(min(parameters.mbit_per_s))
    swing = np.cos(np.pi * at_s / parameters.hold_s)
    levels = np.exp((high + low) / 2 + (high - low) / 2 * swing)
    return np.repeat(levels[:, None], parameters.workers, axis=1)


def _failing(at_s: Floats, parameters: BandwidthParameters) -> Floats:
    first, least = parameters.mbit_per_s[0], min(parameters.mbit_per_s)
    links = np.full((len(at_s), parameters.workers), first)
    links[:, -1] = first * (least / first) ** (at_s / parameters.duration_s)
    return links


_SHAPES: dict[str, Callable[[Floats, BandwidthParameters], Floats]] = {
    "steps": _steps,
    "sinus": _sinus,
    "failing": _failing,
}
