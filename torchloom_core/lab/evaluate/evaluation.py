"""Run one evaluation, from the request to the report; ``torchloom evaluate`` calls it.

A study covers one trace or several. With several, the report also has results over all traces.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from torchloom_core import __version__
from torchloom_core.config.schema import Config
from torchloom_core.floor.errors import ConfigError
from torchloom_core.lab.evaluate.contradictions import (
    refuse_contradicting,
    refuse_incompatible,
    refuse_unmeasured,
    warn_beyond_end,
)
from torchloom_core.lab.evaluate.forecasts.scores import Pool
from torchloom_core.lab.evaluate.goodput.job import of_trace
from torchloom_core.lab.evaluate.on_trace import (
    OnTrace,
    Prepared,
    prepare_allreduce,
    prepare_replay,
    prepare_simulation,
)
from torchloom_core.lab.evaluate.over_fleets import over_fleets
from torchloom_core.lab.evaluate.preflight import check_until, job_on_links
from torchloom_core.lab.evaluate.request import EvaluationRequest, Progress, TraceRequest
from torchloom_core.lab.evaluate.results import Report
from torchloom_core.lab.evaluate.unmeasured import warn_missing
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.checksums import refuse_changed


def evaluate(request: EvaluationRequest, store: Path, progress: Progress) -> Report:
    """Validate the request on all traces, then evaluate one trace after the other.

    Finished runs are cached in the folder ``store``. TorchloomError if the request is invalid for
    one of its traces.
    """
    if request.mode == "simulate" and request.scores:
        raise ConfigError(
            "--scores: need --mode replay, was simulate: no policy acts on given scores"
        )
    if request.mode == "replay" and request.days is not None:
        raise ConfigError(
            f"--days: need --mode simulate, was replay with {request.days:g}: replay scores all "
            f"time from --until on"
        )
    if request.mode == "replay" and request.measured is not None:
        raise ConfigError(
            "--costs-from: need --mode simulate, was replay, in which no checkpoint is saved"
        )
    if len(request.traces) > 1 and request.scores:
        raise ConfigError(
            f"--scores: need the one trace that they belong to, was {len(request.traces)}"
        )
    bundles = [_opened(one) for one in request.traces]
    refuse_incompatible(bundles)
    traces = [
        OnTrace(name=name, request=request, bundle=bundle, config=_config(request, bundle),
                until_ns=one.until_ns)
        for name, bundle, one in zip(names_of(bundles), bundles, request.traces, strict=True)
    ]  # fmt: skip
    pool = Pool() if len(traces) > 1 else None
    if request.mode == "replay":
        ready = [prepare_replay(one, pool) for one in traces]
        source = "the trace"
    else:
        ready, source = _prepare_simulations(traces, store)
    refuse_unmeasured([(one.on.bundle, one.missing) for one in ready])
    for reader, metrics in ready[0].missing.items():
        warn_missing(reader, metrics, ready[0].measured, source)
    found = tuple(one.play(_named(progress, one, len(ready))) for one in ready)
    for bundle in bundles:
        bundle.refuse_replaced()
    return Report(
        mode=request.mode,
        traces=found,
        fleets=msgspec.UNSET if pool is None else over_fleets(found, pool),
        torchloom=__version__,
    )


def names_of(bundles: Sequence[Bundle]) -> list[str]:
    """Return the name of each trace: from its manifest, or its path where names repeat."""
    times = Counter(bundle.manifest.name for bundle in bundles)
    return [
        bundle.manifest.name if times[bundle.manifest.name] == 1 else str(bundle.path)
        for bundle in bundles
    ]


def _opened(one: TraceRequest) -> Bundle:
    bundle = Bundle.open(one.path)
    bundle.digest()  # of these files, should they be replaced meanwhile
    refuse_changed(bundle.path, bundle.manifest.files)
    refuse_contradicting(bundle)
    warn_beyond_end(bundle)
    check_until(bundle, one.until_ns)
    return bundle


def _config(request: EvaluationRequest, bundle: Bundle) -> Config:
    """Return the config with the job of the trace, the measured costs and the requested days."""
    config = of_trace(request.config, bundle)
    if request.measured is not None:
        config = request.measured.applied_to(config)
    if request.days is None:
        return config
    return replace(config, evaluate=replace(config.evaluate, days=request.days))


def _prepare_simulations(traces: Sequence[OnTrace], store: Path) -> tuple[list[Prepared], str]:
    """Return the prepared traces, and the source that lacks the metrics of a warning."""
    jobs = [job_on_links(one.bundle, one.config) for one in traces]
    if jobs[0] is None:
        return [prepare_simulation(one, store) for one in traces], "the trace"
    if len(traces) > 1:
        raise ConfigError(
            f"[evaluate.allreduce]: need one trace with links at a time, was {len(traces)}"
        )
    return [prepare_allreduce(traces[0], jobs[0], store)], "the simulated run"


def _named(progress: Progress, one: Prepared, traces: int) -> Progress:
    """Prefix the progress with the trace's name, where there are several."""
    if traces == 1:
        return progress
    return lambda what, done, total: progress(f"{one.on.name}: {what}", done, total)
