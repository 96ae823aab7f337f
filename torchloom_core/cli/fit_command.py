"""``torchloom fit``."""

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from torchloom_core.cli.interrupts import reports_output
from torchloom_core.cli.options import (
    MOST,
    SCORES,
    AsJson,
    ConfigPath,
    Rate,
    Seconds,
    Several,
    need,
)
from torchloom_core.cli.output import console, print_json, prints_on_stderr
from torchloom_core.cli.progress import progress
from torchloom_core.cli.times import Moment, moment_ns
from torchloom_core.config.loading import load
from torchloom_core.config.schema import Config
from torchloom_core.floor.errors import ConfigError
from torchloom_core.floor.suggest import nearest

# Slow to import; `torchloom --help` should not wait for it.
if TYPE_CHECKING:
    from torchloom_core.lab.evaluate.forecasts.backtest_forecasts import Progress
    from torchloom_core.lab.learning.card import Card


def fit(
    trace: Path,
    /,
    *,
    predictor: str,
    until: Moment,
    option: Several = (),
    out: Path | None = None,
    task: Literal["forecast", "detect"] = "forecast",
    lead_s: Annotated[float, Parameter(validator=Number(gte=0, lte=MOST))] = 0.0,
    kind: Several = (),
    false_alarms_per_node_day: Rate = 0.01,
    tick_s: Seconds = None,
    repair_s: Annotated[float | None, Parameter(validator=Number(gte=0, lte=MOST))] = None,
    every_s: Seconds = None,
    seed: Annotated[int, Parameter(validator=Number(gte=0, lt=2**32))] = 0,
    known_before: Several = (),
    force: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    json: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """Fit a predictor on the earlier part of a trace, and measure its skill on the rest.

    Writes a model, NAME.tlmodel, with a model card; a model without skill is written as well.

    Parameters
    ----------
    trace
        Bundle, NAME.tltrace.
    predictor
        Name of the predictor, as `torchloom plugins` lists it. auto: the one that scores best
        within the training time.
    until
        End of the training time: a date such as 2024-06-30, the start of a month or year such as
        2024-06, or days since the start such as 30d.
    option
        Option of the predictor, may be repeated; overrides the config: horizon_s=604800, or a TOML
        list in shell quotes: 'metrics=["smart_5", "smart_187"]', 'spans_s=[600, 3600]'.
    out
        Model to write, NAME.tlmodel. Default: PREDICTOR.tlmodel in this folder.
    task
        forecast: predict failures. detect: detect ongoing incidents, fatal or not.
    lead_s
        Minimum time between a useful forecast and the failure, seconds.
    kind
        Kind of event to predict, may be repeated: --kind gpu_lost --kind nic_down. Default: all
        fatal kinds; for detect, all kinds.
    false_alarms_per_node_day
        False alarms per watched component (node or disk) and day that set the threshold.
    tick_s
        Interval of the samples that the predictor sees, seconds. Default: [evaluate] tick_s.
    repair_s
        Assumed repair time after a failure without a recorded end, seconds. Default: [evaluate]
        repair_s.
    every_s
        Interval between forecasts, seconds. Default: the predictor's own.
    seed
        Seed of the random baseline.
    known_before
        Metric, attribute or kind of event that looks like a leak of the label but was known before
        the failure; also "its rack" and "time in service"; may be repeated.
    force
        Replace an existing model.
    """
    need(*SCORES, "safetensors", "skops")
    from torchloom_core.lab.activation.discovery import by_name, discover
    from torchloom_core.lab.fitting.build import refuse_unmeasured
    from torchloom_core.lab.fitting.checks import check_predictor, checked_trace
    from torchloom_core.lab.fitting.choose import AUTO, fit_best
    from torchloom_core.lab.fitting.fit import fit as fit_model
    from torchloom_core.lab.fitting.time_split import FitSettings
    from torchloom_core.lab.learning.model import SUFFIX, refuse_place
    from torchloom_core.lab.learning.skill import BASELINES, DETECTORS
    from torchloom_core.lab.trace.bundle.bundle import Bundle

    settings = load(config)
    predictors = by_name(discover(), "predictor")
    if predictor not in {AUTO, *predictors}:
        raise ConfigError(
            f"--predictor: unknown predictor {predictor!r}{nearest(predictor, predictors)}"
        )
    given = _given(option)
    bundle = Bundle.open(trace)
    refuse_unmeasured(bundle, given)
    path = out or Path(f"{predictor}{SUFFIX}")
    refuse_place(path, force=force)
    fit_settings = FitSettings(
        until_ns=moment_ns(until, bundle.manifest),
        tick_s=settings.evaluate.tick_s if tick_s is None else tick_s,
        repair_s=settings.evaluate.repair_s if repair_s is None else repair_s,
        every_s=every_s,
        task=task,
        lead_s=lead_s,
        kinds=kind,
        false_alarms_per_node_day=false_alarms_per_node_day,
        seed=seed,
        known_before=known_before,
    )
    options = {**_configured(predictor, settings), **given}
    baselines = [predictors[name] for name in (*BASELINES, *DETECTORS) if name in predictors]
    place = path.absolute()  # a plugin may change the working folder
    with reports_output(path), prints_on_stderr(), progress() as report_progress:

        def stages(name: str) -> "Progress":
            return lambda share: report_progress(name, share, 1.0)

        with checked_trace(bundle, fit_settings):
            if predictor == AUTO:
                model = fit_best(
                    bundle,
                    list(predictors.values()),
                    options,
                    fit_settings,
                    baselines=baselines,
                    stages=stages,
                )
            else:
                info = predictors[predictor]
                check_predictor(bundle, info, options, fit_settings, source="--option")
                model = fit_model(
                    bundle,
                    info,
                    options,
                    fit_settings,
                    baselines=baselines,
                    stages=stages,
                    source="--option",
                )
        model.save(place, force=force)
    if json:
        print_json(model.card)
        return
    _show(model.card)
    chosen = model.card.predictor
    usage = f"; use it with --predictor {chosen}={path}" if predictor == AUTO else ""
    console().print(f"wrote {path}{usage}", markup=False, soft_wrap=True)


def _configured(predictor: str, settings: Config) -> dict[str, Any]:
    """Return the predictor's options in the config; a fitted model has its own."""
    options = settings.predictors.get(predictor, {})
    return {} if "model" in options else options


def _given(texts: tuple[str, ...]) -> dict[str, Any]:
    """Return the options given on the command line."""
    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"--option: need NAME=VALUE, was {text!r}")
        try:
            options[name] = tomllib.loads(f"value = {value}")["value"]
        except (ValueError, RecursionError):
            if value.startswith("["):
                raise ConfigError(
                    f"""--option: need a TOML list in shell quotes, such as """
                    f"""'{name}=["a", "b"]' or '{name}=[1, 2]', was {value}"""
                ) from None
            options[name] = value
    return options


def _show(card: "Card") -> None:
    from rich.table import Table
    from rich.text import Text

    from torchloom_core.lab.learning.card import (
        TRIED_COLUMNS,
        facts,
        score_columns,
        score_rows,
        tried_rows,
        versus_rows,
    )

    out = console()
    about = Table(title=f"{card.predictor}, {card.package}", box=None, show_header=False)
    for row in facts(card):
        about.add_row(*map(Text, row))
    scores = Table(*score_columns(card), title="scores on the test time, after the training time")
    for scored in score_rows(card):
        scores.add_row(*map(Text, scored))
    out.print(about)
    if card.tried:
        tried = Table(*TRIED_COLUMNS, title="candidates, scored within the training time")
        for one in tried_rows(card):
            tried.add_row(*map(Text, one))
        out.print(tried)
    out.print(scores)
    for name, difference in versus_rows(card):
        out.print(f"AUPRC above {name}: {difference}", markup=False)
    for flag in card.score.flags:
        out.print(f"warning: {flag}", markup=False, soft_wrap=True)
    for limit in card.limits:
        out.print(limit, markup=False, soft_wrap=True)
    level, sentence = card.verdict
    out.print(Text(sentence, style="bold" if level == "useful" else "bold yellow"), soft_wrap=True)
