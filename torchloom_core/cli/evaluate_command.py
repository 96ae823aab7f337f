"""``torchloom evaluate``."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from torchloom_core.cli.interrupts import reports_interruption
from torchloom_core.cli.options import MOST, SCORES, AsJson, Rate, Seconds, Several, need
from torchloom_core.cli.output import console, prints_on_stderr
from torchloom_core.cli.progress import progress
from torchloom_core.cli.times import Moment, moment_ns
from torchloom_core.config.loading import load
from torchloom_core.floor.errors import ConfigError, WorkerLost

# Slow to import; `torchloom --help` should not wait for it.
if TYPE_CHECKING:
    from torchloom_core.lab.evaluate.results import Report

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
    horizon_s: Seconds = None,
    false_alarms_per_node_day: Rate = 0.01,
    sensitivity: Annotated[bool, Parameter(show_default=False)] = True,
    sweep: Annotated[str, Parameter(show_default=False)] = "",
    costs_from: Path | None = None,
    jobs: int = 1,
    backend: Literal["loky", "ray"] = "loky",
    ray_address: str = "",
    out: Path | None = None,
    json: AsJson = False,
    open_: Annotated[bool, Parameter(name="--open", negative="", show_default=False)] = False,
) -> int:
    """Backtest policies and predictors on recorded traces, and compare them with baselines.

    Writes report.json and report.html, with a summary over all traces if there are several. After
    an interruption, the same command continues with the finished runs.

    Parameters
    ----------
    traces
        Bundles, NAME.tltrace; each counts as one fleet.
    policy
        Policy to test, may be repeated: --policy straggler --policy thresholds; a+b tests both
        together. Its options come from the config.
    predictor
        Predictor whose forecasts the policies use, NAME or NAME=MODEL.tlmodel; may be repeated,
        also with several models of one predictor.
    scores
        External forecasts to score with --mode replay, may be repeated: NAME=FILE, Parquet or CSV,
        such as lstm=lstm.csv.
    config
        Config file with the job, the costs and the plugins' options. Without --policy and
        --predictor, all its policies are tested.
    mode
        simulate: actions take effect in the fleet model, and goodput is compared. replay: no
        action takes effect, and forecasts are scored.
    seeds
        Runs per arm, each on different nodes at a different time of the trace.
    days
        Length of a run, days. Default: [evaluate] days.
    until
        Use only the time after this: a date such as 2024-06-30, the start of a month or year such
        as 2024-06, or days since the start such as 30d. Default: the end of the models' training
        time; replay scores a predictor without a model after the first 60 % of the trace.
    horizon_s
        Horizon of --scores and of the policies' actions, seconds: a failure must follow within it.
        Default: the longest horizon of the policies' predictors, else 86,400.
    false_alarms_per_node_day
        False alarms per watched component (node or disk) and day that set the threshold of a
        predictor without a model.
    sensitivity
        Also vary the costs, which takes most of the time. Default: yes.
    sweep
        Run the job with a range of spares or standbys, and report how many pay off: spares=0..16,
        spares=0..16:4 in steps of 4, standbys=0..4.
    costs_from
        Trajectory of a run with loom.checkpoints: what its saves, detections and restarts cost
        replaces [costs], and each tier of its checkpoints is an arm.
    jobs
        Number of parallel processes; -1: one per core.
    backend
        Where they run. loky: on this machine. ray: on a Ray cluster.
    ray_address
        Address of the Ray cluster. Default: a cluster on this machine.
    out
        Folder for the report. Default: NAME-evaluation; NAME+1-evaluation for two traces, with
        the name of the first and the number of the others.
    open_
        Open report.html in a browser.
    """
    ray = ("ray",) if backend == "ray" else ()
    need("jinja2", "matplotlib", *(SCORES if mode == "replay" else ("joblib", *ray)))
    from torchloom_core.floor.errors import StateError
    from torchloom_core.floor.files import refuse_unwritable
    from torchloom_core.lab.evaluate.evaluation import evaluate as run_evaluation
    from torchloom_core.lab.evaluate.goodput.candidates import Selection
    from torchloom_core.lab.evaluate.goodput.sweep import range_of
    from torchloom_core.lab.evaluate.measured_costs import measured_costs
    from torchloom_core.lab.evaluate.parallel import Workforce
    from torchloom_core.lab.evaluate.report.page import page_text
    from torchloom_core.lab.evaluate.request import EvaluationRequest, TraceRequest

    if not traces:
        raise ConfigError("evaluate: need at least one trace, NAME.tltrace, was none")

    request = EvaluationRequest(
        traces=tuple(TraceRequest(path=trace, until_ns=_until(trace, until)) for trace in traces),
        config=load(config),
        selection=Selection(
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
        measured=measured_costs(costs_from) if costs_from else None,
        workforce=Workforce(jobs=jobs, backend=backend, ray_address=ray_address),
    )
    shown = out or _folder(traces)
    folder = shown.absolute()  # a plugin may change the working folder
    refuse_unwritable(shown / "report.json", StateError)
    with _reports_saved_runs(folder, shown):
        with prints_on_stderr(), progress() as report_progress:
            report = run_evaluation(request, folder / "runs", report_progress)
        page = _write(report, page_text(report), folder)
        _print(report, shown / page.name, json)
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
    from torchloom_core.lab.trace.bundle.bundle import Bundle

    return None if until is None else moment_ns(until, Bundle.open(trace).manifest)


@contextmanager
def _reports_saved_runs(folder: Path, shown: Path) -> Iterator[None]:
    """After an interrupt, SIGTERM or a worker's death, report how many runs are saved."""
    try:
        with reports_interruption(lambda: _saved(folder, shown)):
            yield
    except WorkerLost as error:
        raise WorkerLost(
            f"{error}; {_saved(folder, shown)}; fewer --jobs need less memory"
        ) from None


def _saved(folder: Path, shown: Path) -> str:
    runs = len(list((folder / "runs").glob("*.json")))
    if not runs:
        return "no run was finished: the same command starts over"
    return f"{runs} finished runs are saved in {shown / 'runs'}: the same command continues"


def _write(report: "Report", text: str, folder: Path) -> Path:
    """Write report.json and report.html, and return the path of the latter."""
    import msgspec

    from torchloom_core.floor.files import write_whole
    from torchloom_core.lab.evaluate.report.sweep import sweep_plot

    data = msgspec.json.format(msgspec.json.encode(report), indent=1)
    write_whole(folder / "report.json", data + b"\n")
    for number, results in enumerate(report.traces, 1):
        if results.simulation and results.simulation.sweep:
            name = "sweep.svg" if report.fleets is msgspec.UNSET else f"sweep-{number}.svg"
            write_whole(folder / name, sweep_plot(results.simulation.sweep).encode())
    page = folder / "report.html"
    write_whole(page, text.encode())
    return page


def _print(report: "Report", page: Path, json: bool) -> None:
    if json:
        from torchloom_core.cli.output import print_json

        print_json(report)
        return
    from torchloom_core.lab.evaluate.report.tables import tables

    out = console()
    out.print(tables(report))
    out.print(f"full report: {page}", markup=False, soft_wrap=True)
