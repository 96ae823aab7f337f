"""``torchloom evaluate``."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from torchloom_core.cli.extras import SCORES, need
from torchloom_core.cli.interrupts import says_if_interrupted
from torchloom_core.cli.options import MOST, AsJson
from torchloom_core.cli.output import console, prints_on_stderr
from torchloom_core.cli.progress import progress
from torchloom_core.cli.times import Moment, moment_ns
from torchloom_core.config.loading import load
from torchloom_core.errors import ConfigError, WorkerLost

# What simulates and scores is heavy, and `torchloom --help` should not wait for it.
if TYPE_CHECKING:
    from torchloom_core.evaluate.results import Report

Several = Annotated[tuple[str, ...], Parameter(negative="", show_default=False)]
Seeds = Annotated[int, Parameter(validator=Number(gte=1, lte=10_000))]


def evaluate(
    *traces: Path,
    policy: Several = (),
    predictor: Several = (),
    scores: Several = (),
    config: Path | None = None,
    mode: Literal["simulate", "replay"] = "simulate",
    seeds: Seeds = 10,
    days: Annotated[float | None, Parameter(validator=Number(gt=0, lte=MOST))] = None,
    until: Moment | None = None,
    horizon_s: Annotated[float | None, Parameter(validator=Number(gt=0, lte=MOST))] = None,
    false_alarms_per_node_day: Annotated[
        float, Parameter(validator=Number(gte=0, lte=MOST))
    ] = 0.01,
    sensitivity: Annotated[bool, Parameter(show_default=False)] = True,
    sweep: Annotated[str, Parameter(show_default=False)] = "",
    jobs: int = 1,
    backend: Literal["loky", "ray"] = "loky",
    ray_address: str = "",
    out: Path | None = None,
    json: AsJson = False,
    open_: Annotated[bool, Parameter(name="--open", negative="", show_default=False)] = False,
) -> int:
    """Backtest policies and predictors on recorded traces, against honest baselines.

    Of several traces it says as well what all say together. Writes report.json and report.html.
    What was finished before an interruption is kept, and the same command goes on from there.

    Parameters
    ----------
    traces
        The bundles, NAME.tltrace; each counts as one fleet.
    policy
        A policy to test, may be repeated: --policy straggler --policy thresholds; a+b is both at
        once. Options are those of the config.
    predictor
        Whose forecasts policies act on, may be repeated, also with several models of one
        predictor: NAME, or NAME=MODEL.tlmodel.
    scores
        Forecasts made elsewhere, may be repeated: NAME=FILE, Parquet or CSV, as lstm=lstm.csv; for
        replay.
    config
        Config file: the job, the costs, the plugins' options; alone, all its policies are tested.
    mode
        simulate: the fleet model answers, in goodput; replay: nobody does, forecasts are scored.
    seeds
        Runs of each arm, each on other nodes at another time of the trace.
    days
        Length of a run; [evaluate] days unless given.
    until
        Only the time after is played or scored: a date, the beginning of a month or year such as
        2024-06, or days since the start such as 30d.
        Unless given that after what the models were fitted on; replay scores a predictor
        without a model after the first 60 %.
    horizon_s
        In which time given scores and what a policy does must prove right; the longest of the
        policies' predictors, or a day, unless given.
    false_alarms_per_node_day
        The threshold of a predictor without a model keeps to so many of each component that is
        watched, be it a node or a disk.
    sensitivity
        Vary the costs, too, which is most of the work.
    sweep
        Play the job with more and more spares, and say how many pay: spares=0..16, or
        spares=0..16:4 in steps of 4; standbys=0..4.
    jobs
        Processes at once; -1: one a core.
    backend
        Where they run: on this machine, or on a Ray cluster.
    ray_address
        Of the cluster; one on this machine unless given.
    out
        Folder of the report; unless given NAME-evaluation, of several traces NAME+1-evaluation
        with the name of the first and the number of the others.
    open_
        Show the page in a browser.
    """
    ray = ("ray",) if backend == "ray" else ()
    need("jinja2", "matplotlib", *(SCORES if mode == "replay" else ("joblib", *ray)))
    from torchloom_core.errors import StateError
    from torchloom_core.evaluate.evaluation import evaluate as find_out
    from torchloom_core.evaluate.goodput.candidates import Asked
    from torchloom_core.evaluate.goodput.sweep import range_of
    from torchloom_core.evaluate.parallel import Workforce
    from torchloom_core.evaluate.report import page_text
    from torchloom_core.evaluate.wanted import TraceWanted, Wanted
    from torchloom_core.files import refuse_unwritable

    if not traces:
        raise ConfigError("evaluate: need a trace, NAME.tltrace, was none")

    wanted = Wanted(
        traces=tuple(TraceWanted(path=trace, until_ns=_until(trace, until)) for trace in traces),
        config=load(config),
        asked=Asked(
            policies=policy,
            predictors=tuple(_pair("--predictor", text) for text in predictor),
            config_path=config,
        ),
        mode=mode,
        scores=tuple(_pair("--scores", text, need_value=True) for text in scores),
        false_alarms_per_node_day=false_alarms_per_node_day,
        days=days,
        horizon_s=horizon_s,
        seeds=seeds,
        vary_costs=sensitivity,
        sweep=range_of(sweep) if sweep else None,
        workforce=Workforce(jobs=jobs, backend=backend, ray_address=ray_address),
    )
    shown = out or _folder(traces)
    folder = shown.absolute()  # whatever folder a plugin goes to
    refuse_unwritable(shown / "report.json", StateError)
    with _says_what_is_kept(folder, shown):
        with prints_on_stderr(), progress() as told:
            report = find_out(wanted, folder / "runs", told)
        page = _write(report, page_text(report), folder)
        _tell(report, shown / page.name, json)
    if open_:
        import webbrowser

        webbrowser.open(page.absolute().as_uri())
    return 0


def _folder(traces: tuple[Path, ...]) -> Path:
    name = traces[0].name.removesuffix(".tltrace")
    others = f"+{len(traces) - 1}" if len(traces) > 1 else ""
    return Path(f"{name}{others}-evaluation")


def _pair(option: str, text: str, *, need_value: bool = False) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or (equals and not value) or (need_value and not value):
        form = "NAME=FILE" if need_value else "NAME or NAME=MODEL.tlmodel"
        raise ConfigError(f"{option}: need {form}, was {text!r}")
    return name, value


def _until(trace: Path, until: Moment | None) -> int | None:
    from torchloom_core.trace.bundle.bundle import Bundle

    return None if until is None else moment_ns(until, Bundle.open(trace).manifest)


@contextmanager
def _says_what_is_kept(folder: Path, shown: Path) -> Iterator[None]:
    """Where an interrupt, SIGTERM or a dead process ends it, say what is not lost."""
    try:
        with says_if_interrupted(lambda: _kept(folder, shown)):
            yield
    except WorkerLost as error:
        raise WorkerLost(
            f"{error}; {_kept(folder, shown)}, fewer --jobs need less memory"
        ) from None


def _kept(folder: Path, shown: Path) -> str:
    kept = len(list((folder / "runs").glob("*.json")))
    what = f"{kept} finished runs are kept in {shown / 'runs'}" if kept else "no run was finished"
    return f"{what}: the same command {'goes on from there' if kept else 'begins anew'}"


def _write(report: "Report", text: str, folder: Path) -> Path:
    """Write the report and its page, and return where the page is."""
    import msgspec

    from torchloom_core.evaluate.report import sweep_plot
    from torchloom_core.files import write_whole

    data = msgspec.json.format(msgspec.json.encode(report), indent=1)
    write_whole(folder / "report.json", data + b"\n")
    for number, results in enumerate(report.traces, 1):
        if results.simulation and results.simulation.sweep:
            name = "sweep.svg" if report.fleets is msgspec.UNSET else f"sweep-{number}.svg"
            write_whole(folder / name, sweep_plot(results.simulation.sweep).encode())
    page = folder / "report.html"
    write_whole(page, text.encode())
    return page


def _tell(report: "Report", page: Path, json: bool) -> None:
    if json:
        from torchloom_core.cli.output import print_json

        print_json(report)
        return
    from torchloom_core.evaluate.report import tables

    out = console()
    out.print(tables(report))
    out.print(f"the whole report: {page}", markup=False, soft_wrap=True)
