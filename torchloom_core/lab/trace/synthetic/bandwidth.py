"""Write a synthetic bandwidth trace: the bandwidth of each worker's link over time."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
import pyarrow as pa

from torchloom_core.config.schema import Positive, Share
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import TraceError
from torchloom_core.interface.arrays import Floats, Ints
from torchloom_core.lab.trace.bundle.schema import LINK_METRIC, Component
from torchloom_core.lab.trace.bundle.writer import BundleWriter
from torchloom_core.lab.trace.synthetic.parameters import START_NS, generator

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
    """Write the bundle ``out``; the same parameters give the same bytes.

    TraceError if ``out`` exists and ``force`` is not set, or it would have too many values.
    """
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
    rows = len(stamps)
    workers = np.tile(np.arange(parameters.workers, dtype=np.int32), len(at_s))
    return pa.table(
        {
            "t_event": stamps,
            "t_avail": stamps,
            "component": pa.DictionaryArray.from_arrays(workers, pa.array(names)),
            "metric": pa.DictionaryArray.from_arrays(
                np.zeros(rows, dtype=np.int32), pa.array([LINK_METRIC])
            ),
            "value": (mbit * _BYTES_PER_MBIT).ravel(),
            "valid": np.ones(rows, dtype=np.bool_),
        }
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
