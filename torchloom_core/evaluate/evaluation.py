"""An evaluation from what a person asked for to the report: ``torchloom evaluate`` calls it.

A study is of one trace or of several; of several it says as well what all say together.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from torchloom_core import __version__
from torchloom_core.config.schema import Config
from torchloom_core.errors import ConfigError
from torchloom_core.evaluate.compatible_traces import refuse_incompatible, refuse_unmeasured
from torchloom_core.evaluate.contradictions import refuse_contradicting, say_beyond
from torchloom_core.evaluate.fleet_results import OverFleets
from torchloom_core.evaluate.forecasts.leaks import refuse_foreknown
from torchloom_core.evaluate.forecasts.over_fleets import Pool, scores_over_fleets
from torchloom_core.evaluate.goodput.job import of_trace
from torchloom_core.evaluate.goodput.over_fleets import goodput_over_fleets
from torchloom_core.evaluate.on_trace import (
    OnTrace,
    Prepared,
    prepare_allreduce,
    prepare_replay,
    prepare_simulation,
)
from torchloom_core.evaluate.preflight import check_until, job_on_links
from torchloom_core.evaluate.results import Report, TraceResults
from torchloom_core.evaluate.unmeasured import say_unseen
from torchloom_core.evaluate.wanted import Progress, TraceWanted, Wanted
from torchloom_core.trace.bundle.bundle import Bundle
from torchloom_core.trace.bundle.checksums import refuse_changed


def evaluate(wanted: Wanted, store: Path, progress: Progress) -> Report:
    """Do it: look at all traces, refuse what has to be, then play one after the other.

    Parameters
    ----------
    store : Path
        Folder of the finished runs.

    Raises
    ------
    TorchloomError
        If anything that was asked for cannot be had.
    """
    if wanted.mode == "simulate" and wanted.scores:
        raise ConfigError("--scores: need --mode replay, was simulate: nobody acts on given scores")
    if wanted.mode == "replay" and wanted.days is not None:
        raise ConfigError(
            f"--days: need --mode simulate, was replay with {wanted.days:g}: all time from --until "
            f"on is scored"
        )
    if len(wanted.traces) > 1 and wanted.scores:
        raise ConfigError(f"--scores: need one trace that they are of, was {len(wanted.traces)}")
    bundles = [_opened(one) for one in wanted.traces]
    refuse_incompatible(bundles)
    traces = [
        OnTrace(name=name, wanted=wanted, bundle=bundle, config=_config(wanted, bundle),
                until_ns=one.until_ns)
        for name, bundle, one in zip(names_of(bundles), bundles, wanted.traces, strict=True)
    ]  # fmt: skip
    pool = Pool() if len(traces) > 1 else None
    if wanted.mode == "replay":
        ready = [prepare_replay(one, pool) for one in traces]
        lacking = "the trace has not"
    else:
        ready, lacking = _prepare_simulations(traces, store)
    refuse_unmeasured([(one.on.bundle, one.missing) for one in ready])
    for reader, metrics in ready[0].missing.items():
        say_unseen(reader, metrics, ready[0].known, lacking)
    found = tuple(one.play(_named(progress, one, len(ready))) for one in ready)
    for bundle in bundles:
        bundle.refuse_replaced()
    return Report(
        mode=wanted.mode,
        traces=found,
        fleets=msgspec.UNSET if pool is None else _over_fleets(found, pool),
        torchloom=__version__,
    )


def names_of(bundles: Sequence[Bundle]) -> list[str]:
    """Return what each is called: by its manifest, or by its place where others are called so."""
    times = Counter(bundle.manifest.name for bundle in bundles)
    return [
        bundle.manifest.name if times[bundle.manifest.name] == 1 else str(bundle.path)
        for bundle in bundles
    ]


def _opened(one: TraceWanted) -> Bundle:
    bundle = Bundle.open(one.path)
    bundle.digest()  # of what is looked at, whatever is there at the end
    refuse_changed(bundle.path, bundle.manifest.files)
    refuse_foreknown(bundle)
    refuse_contradicting(bundle)
    say_beyond(bundle)
    check_until(bundle, one.until_ns)
    return bundle


def _config(wanted: Wanted, bundle: Bundle) -> Config:
    """Return the config with the job of the trace, and the days that were asked for."""
    config = of_trace(wanted.config, bundle)
    if wanted.days is None:
        return config
    return replace(config, evaluate=replace(config.evaluate, days=wanted.days))


def _prepare_simulations(traces: Sequence[OnTrace], store: Path) -> tuple[list[Prepared], str]:
    """Return the traces made ready, and who it is that does not measure what a plugin reads."""
    jobs = [job_on_links(one.bundle, one.config) for one in traces]
    if jobs[0] is None:
        return [prepare_simulation(one, store) for one in traces], "the trace has not"
    if len(traces) > 1:
        raise ConfigError(
            f"[evaluate.allreduce]: need one trace of links at a time, was {len(traces)}"
        )
    return [prepare_allreduce(traces[0], jobs[0], store)], "simulated trainers do not report"


def _named(progress: Progress, one: Prepared, traces: int) -> Progress:
    """Say of which trace it is, where there are several."""
    if traces == 1:
        return progress
    return lambda what, done, total: progress(f"{one.on.name}: {what}", done, total)


def _over_fleets(found: Sequence[TraceResults], pool: Pool) -> OverFleets:
    simulations = [one.simulation for one in found if one.simulation is not None]
    return OverFleets(
        traces=len(found),
        forecasts=scores_over_fleets([one.forecasts for one in found], pool),
        goodput=goodput_over_fleets(simulations) if simulations else msgspec.UNSET,
    )
