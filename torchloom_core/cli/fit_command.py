"""``torchloom fit``."""

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from torchloom_core.cli.extras import SCORES, need
from torchloom_core.cli.interrupts import whole_or_not
from torchloom_core.cli.options import MOST, AsJson, ConfigPath
from torchloom_core.cli.output import console, print_json, prints_on_stderr
from torchloom_core.cli.progress import progress
from torchloom_core.cli.times import Moment, moment_ns
from torchloom_core.config.loading import load
from torchloom_core.config.schema import Config
from torchloom_core.errors import ConfigError
from torchloom_core.suggest import nearest

# What fits and scores is heavy, and `torchloom --help` should not wait for it.
if TYPE_CHECKING:
    from torchloom_core.evaluate.forecasts.backtest_forecasts import Progress
    from torchloom_core.learning.card import Card

_DAY_S = 86_400.0

Seconds = Annotated[float | None, Parameter(validator=Number(gt=0, lte=MOST))]


def fit(
    trace: Path,
    /,
    *,
    predictor: str,
    until: Moment,
    option: Annotated[tuple[str, ...], Parameter(negative="", show_default=False)] = (),
    out: Path | None = None,
    task: Literal["forecast", "detect"] = "forecast",
    lead_s: Annotated[float, Parameter(validator=Number(gte=0, lte=MOST))] = 0.0,
    kind: Annotated[tuple[str, ...], Parameter(negative="", show_default=False)] = (),
    false_alarms_per_node_day: Annotated[
        float, Parameter(validator=Number(gte=0, lte=MOST))
    ] = 0.01,
    tick_s: Seconds = None,
    repair_s: Annotated[float | None, Parameter(validator=Number(gte=0, lte=MOST))] = None,
    every_s: Seconds = None,
    seed: Annotated[int, Parameter(validator=Number(gte=0, lt=2**32))] = 0,
    known_before: Annotated[tuple[str, ...], Parameter(negative="", show_default=False)] = (),
    force: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    json: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """Fit a predictor on the earlier part of a trace, and measure it on the rest.

    Writes a model, NAME.tlmodel, with a card that says what it is worth; no skill is no error.

    Parameters
    ----------
    trace
        The bundle, NAME.tltrace.
    predictor
        Which one; `torchloom plugins` lists them. auto: the one that is best on earlier time.
    until
        End of the training time: a date, 2024-06-30, the beginning of a month or year, 2024-06,
        or days since the start, 30d.
    option
        An option of the predictor, may be repeated: horizon_s=604800, or a list as TOML has it,
        in quotes for the shell: 'metrics=["smart_5", "smart_187"]', 'spans_s=[600, 3600]'. Comes
        before the config's.
    out
        The model to write, NAME.tlmodel; PREDICTOR.tlmodel in this folder unless given.
    task
        Whether to tell that a failure is coming, or that an incident is going on, fatal or not.
    lead_s
        How long before a failure a forecast is still of use, seconds.
    kind
        Only this kind of event counts, may be repeated: --kind gpu_lost --kind nic_down. Unless
        given, those that are fatal, or for detect all.
    false_alarms_per_node_day
        The threshold keeps to so many of each component that is watched, be it a node or a disk.
    tick_s
        Spacing of the samples the predictor sees; [evaluate] tick_s unless given.
    repair_s
        How long a component is away after a failure whose end nobody knows, seconds; [evaluate]
        repair_s unless given.
    every_s
        How often it is asked; as often as it says unless given.
    seed
        Of the random score.
    known_before
        A metric, an attribute or a kind of event that was known beforehand, though it tells how a
        component ends; also "its rack" and "time in service"; may be repeated.
    force
        Replace a model that is there already.
    config
        Config file; torchloom.toml in this folder unless given.
    """
    need(*SCORES, "safetensors", "skops")
    from torchloom_core.activation.discovery import by_name, discover
    from torchloom_core.fitting.build import refuse_unmeasured
    from torchloom_core.fitting.choose import AUTO, fit_best
    from torchloom_core.fitting.fit import fit as fit_model
    from torchloom_core.fitting.stages import FitSettings
    from torchloom_core.learning.model import SUFFIX, refuse_place
    from torchloom_core.learning.skill import BASELINES, DETECTORS
    from torchloom_core.trace.bundle.bundle import Bundle

    settings = load(config)
    known = by_name(discover(), "predictor")
    if predictor not in {AUTO, *known}:
        raise ConfigError(
            f"--predictor: no predictor is called {predictor!r}{nearest(predictor, known)}"
        )
    told = _told(option)
    bundle = Bundle.open(trace)
    refuse_unmeasured(bundle, told)
    path = out or Path(f"{predictor}{SUFFIX}")
    refuse_place(path, force=force)
    wanted = FitSettings(
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
    options = {**_configured(predictor, settings), **told}
    baselines = [known[name] for name in (*BASELINES, *DETECTORS) if name in known]
    place = path.absolute()  # whatever folder a plugin goes to
    with whole_or_not(path), prints_on_stderr(), progress() as shown:

        def stages(name: str) -> "Progress":
            return lambda share: shown(name, share, 1.0)

        if predictor == AUTO:
            model = fit_best(
                bundle, list(known.values()), options, wanted, baselines=baselines, stages=stages
            )
        else:
            model = fit_model(
                bundle,
                known[predictor],
                options,
                wanted,
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
    named = f", for --predictor {chosen}={path}" if predictor == AUTO else ""
    console().print(f"wrote {path}{named}", markup=False, soft_wrap=True)


def _configured(predictor: str, settings: Config) -> dict[str, Any]:
    """Return the config's options of the predictor; a fitted model's are its own."""
    options = settings.predictors.get(predictor, {})
    return {} if "model" in options else options


def _told(texts: tuple[str, ...]) -> dict[str, Any]:
    """Return the options that were told on the command line."""
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
                    f"""--option: need a list as TOML has it, in quotes for the shell, such as """
                    f"""'{name}=["a", "b"]' or '{name}=[1, 2]', was {value}"""
                ) from None
            options[name] = value
    return options


def _show(card: "Card") -> None:
    from rich.table import Table
    from rich.text import Text

    from torchloom_core.learning.card import (
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
    scores = Table(*score_columns(card), title="on the time after, which it never saw")
    for scored in score_rows(card):
        scores.add_row(*map(Text, scored))
    out.print(about)
    if card.tried:
        tried = Table(*TRIED_COLUMNS, title="chosen on earlier time, among")
        for one in tried_rows(card):
            tried.add_row(*map(Text, one))
        out.print(tried)
    out.print(scores)
    for name, difference in versus_rows(card):
        out.print(f"AUPRC above {name}: {difference}", markup=False)
    for flag in card.score.flags:
        out.print(f"leak or doubt: {flag}", markup=False, soft_wrap=True)
    for remark in card.remarks:
        out.print(remark, markup=False, soft_wrap=True)
    level, sentence = card.verdict
    out.print(Text(sentence, style="bold" if level == "useful" else "bold yellow"), soft_wrap=True)
