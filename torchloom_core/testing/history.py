"""A short synthetic history of a fleet with all the events that a plugin must handle."""

from collections.abc import Sequence

import numpy as np

from torchloom_core.config.schema import Costs
from torchloom_core.interface.api import Example
from torchloom_core.interface.arrays import Floats, samples_in
from torchloom_core.interface.needs import PolicyNeed, forecasts_read, notes_read, windows_s
from torchloom_core.interface.view import FleetView
from torchloom_core.testing.views import EPOCH_S, LinkSample, view_of
from torchloom_core.wire.events import Fault, Forecast
from torchloom_core.wire.messages import KnobSpec, Note

TICKS = 24
_WORKERS = 10
_MOST_SAMPLES = 60
_LINKS = (1.0, 6e6, 125e6, 1e15)
_EXTREMES = (0.0, -1.0, 1e300, np.inf, -np.inf)


def history(needs: Sequence[PolicyNeed], seed: int = 0) -> list[FleetView]:
    """Return the views of ``TICKS`` successive ticks.

    There are six workers at first and ten at the end, two per group, four per rack, and one
    standby group. Metrics have noise, trends, spikes, extreme values, gaps, and one disappears. A
    worker becomes unreachable, one hangs, one drains and leaves, one dies. There are faults,
    forecasts and link measurements. The same arguments give the same history.
    """
    random = np.random.default_rng(seed)
    windows = windows_s(needs)
    tick_s = _tick_s(needs)
    past = _MOST_SAMPLES
    series = {metric: _series(random, past + TICKS) for metric in windows}
    hazards = random.choice([0.0, 0.01, 0.5, 1.0], size=(TICKS, _WORKERS + 1))
    names = [need.predictor for need in forecasts_read(needs)]
    links = np.random.default_rng([seed, 1]).choice(_LINKS, size=(TICKS, _WORKERS))
    views = []
    for tick in range(TICKS):
        workers = 6 if tick < 8 else _WORKERS
        now_s = EPOCH_S + tick * tick_s
        metrics = {
            metric: series[metric][
                :workers, past + tick + 1 - samples_in(window_s, tick_s) : past + tick + 1
            ]
            for metric, window_s in windows.items()
        }
        forecast = tick // 3 * 3
        views.append(
            view_of(
                metrics,
                workers=[f"g{i // 2}-{i % 2}" for i in range(workers)],
                group=[f"g{i // 2}" for i in range(workers)],
                node=[f"n{i}" if i != 3 else "" for i in range(workers)],
                rack=[f"r{i // 4}" if i < 8 else "" for i in range(workers)],
                state=_states(tick)[:workers],
                step=10 * tick + np.arange(workers) % 3,
                heartbeat_age_s=_since(tick, 5, 0, workers) * 30 * tick_s,
                progress_age_s=_since(tick, 7, 1, workers) * 300 * tick_s,
                now_s=now_s,
                tick_s=tick_s,
                stale_after_s=10 * tick_s,
                knob_specs=[KnobSpec(name="lr", kind="float", low=0.0, high=1.0)],
                knob_values=[{"lr": 0.1}] * workers,
                forecasts=[_forecast(name, forecast, hazards[forecast]) for name in names],
                faults=[fault for fault in _FAULTS if fault.ts_ns <= now_s * 1e9],
                costs=Costs(),
                links=_links(links, tick, tick_s),
                notes={kind: _notes(kind, tick, now_s) for kind in notes_read(needs)},
            )
        )
    return views


def examples(needs: Sequence[PolicyNeed], seed: int = 0) -> list[Example]:
    """Return the same history as examples with outcomes, as in ``torchloom fit``.

    The workers with rising and with spiking metrics fail, and so does the one that dies; the
    outcome is unknown for a worker that drains, and after a failure.
    """
    views = history(needs, seed)
    return [
        Example(view=view, outcome=_outcomes(tick)[: len(view)]) for tick, view in enumerate(views)
    ]


def blank(needs: Sequence[PolicyNeed], workers: int, tick: int = 0) -> FleetView:
    """Return a view of ``workers`` without any sample."""
    tick_s = _tick_s(needs)
    metrics = {
        metric: np.full((workers, samples_in(window_s, tick_s)), np.nan)
        for metric, window_s in windows_s(needs).items()
    }
    return view_of(
        metrics,
        workers=workers,
        tick_s=tick_s,
        now_s=EPOCH_S + tick * tick_s,
        predictors=[need.predictor for need in forecasts_read(needs)],
        notes={kind: {} for kind in notes_read(needs)},
    )


def _tick_s(needs: Sequence[PolicyNeed]) -> float:
    """Return a tick length for which no window exceeds ``_MOST_SAMPLES``."""
    return max(1.0, max(windows_s(needs).values(), default=0.0) / _MOST_SAMPLES)


def _series(random: np.random.Generator, samples: int) -> Floats:
    """Return ``(workers, samples)`` of one metric."""
    values = 50.0 + random.normal(size=(_WORKERS, samples))
    values[1] += np.maximum(np.arange(samples) - _MOST_SAMPLES, 0) * 3.0
    values[2, _MOST_SAMPLES + 5 :] = np.nan
    values[3, _MOST_SAMPLES + 6 : _MOST_SAMPLES + 15] *= 20.0
    values[4, -len(_EXTREMES) :] = _EXTREMES
    values[6] = 50.0
    values[random.random(values.shape) < 0.1] = np.nan
    return values


def _states(tick: int) -> list[str]:
    return [
        "training",
        "training",
        "training",
        "paused" if 10 <= tick < 12 else "training",
        "training" if tick < 9 else "draining" if tick < 12 else "left",
        "training" if tick < 9 else "gone",
        "joining" if tick < 14 else "training",
        "joining" if tick < 14 else "training",
        "standby",
        "standby",
    ]


def _outcomes(tick: int) -> Floats:
    """Return ``(workers,)``: 1 before a failure, NaN if unknown, else 0."""
    outcome = np.zeros(_WORKERS)
    outcome[1] = 1.0 if tick >= 6 else 0.0
    outcome[3] = 1.0 if 6 <= tick < 15 else 0.0
    outcome[4] = 0.0 if tick < 9 else np.nan
    outcome[5] = 0.0 if tick < 4 else 1.0 if tick < 9 else np.nan
    return outcome


def _since(tick: int, start: int, row: int, workers: int) -> Floats:
    """Return ``(workers,)`` ticks since ``start`` for one row, until 10 ticks later, else 0."""
    ticks = np.zeros(workers)
    ticks[row] = max(0, tick - start) if tick < start + 10 else 0
    return ticks


def _forecast(predictor: str, tick: int, hazards: Floats) -> Forecast:
    """Return a forecast that also judges an unknown worker."""
    return Forecast(
        id=f"{predictor}-{tick}",
        predictor=predictor,
        horizon_s=60.0,
        hazard={f"g{i // 2}-{i % 2}": float(p) for i, p in enumerate(hazards)},
        why={"g0-0": "a reason"},
    )


def _notes(kind: str, tick: int, now_s: float) -> dict[int, Note]:
    """Return the newest notes of a kind: one worker sends it at times, with unusual fields."""
    if tick < 6:
        return {}
    return {
        1: Note(
            run="history",
            worker="g0-1",
            incarnation=1,
            kind=kind,
            fields={"number": float("nan"), "words": "a text"},
            ts_ns=round((now_s - tick % 3) * 1e9),
        )
    }


def _links(bytes_per_s: Floats, tick: int, tick_s: float) -> dict[tuple[str, str], LinkSample]:
    """Return the measurements until ``tick`` of the links from each worker to the next."""
    links = {}
    for then in range(tick + 1):
        for i in range(_WORKERS - 1):
            if (then + i) % 3 or (i == 2 and then > 6):
                continue
            links[f"g{i // 2}-{i % 2}", f"g{(i + 1) // 2}-{(i + 1) % 2}"] = LinkSample(
                bytes_per_s=float(bytes_per_s[then, i]),
                latency_s=0.0 if i == 1 else 1e-4,
                age_s=(tick - then) * tick_s,
                spread=None if i == 3 else 0.1,
            )
    return links


_FAULTS = tuple(
    Fault(
        worker=f"g{i // 2}-{i % 2}",
        node=f"n{i}",
        kind="xid",
        ts_ns=round((EPOCH_S + 4.0 + 5 * i) * 1e9),
        id=f"fault-{i}",
    )
    for i in range(3)
)
