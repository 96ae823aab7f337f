"""``torchloom metrics track``: write the Weaver's metrics to TensorBoard or Weights & Biases."""

import http.client
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from torchloom_core.cli.interrupts import reports_interruption
from torchloom_core.cli.options import ConfigPath
from torchloom_core.cli.output import console
from torchloom_core.config.loading import load
from torchloom_core.floor.errors import ConfigError, StateError
from torchloom_core.floor.plain_text import plain_line

_ANSWER_S = 10.0
_STEP = "run_step"
_KEPT = (
    "run_",
    "knob_desired",
    "proposals",
    "verdicts_total",
    "outcomes_total",
    "commands_total",
    "alerts_total",
    "workers",
    "forecast_hazard",
)
"""Beginnings of the metrics that are written; those of the Weaver's process are Prometheus's."""

_SINCE = "_created"
"""End of the series that says when a counter began, in seconds of Unix time."""

_NO_ANSWER = (OSError, http.client.HTTPException, ValueError)
"""Also an answer that is cut short, or of another program."""

Write = Callable[[Mapping[str, float], int], object]


def track(
    *,
    tensorboard: Path | None = None,
    wandb: str = "",
    every_s: Annotated[float, Parameter(show_default=True)] = 10.0,
    config: ConfigPath = None,
) -> None:
    """Write knobs, verdicts and goodput to TensorBoard or Weights & Biases, until Ctrl-C.

    Parameters
    ----------
    tensorboard
        Folder for TensorBoard: one below the script's own log folder is shown beside it.
    wandb
        Project of Weights & Biases. The run is in a group named after the training run; WANDB_MODE
        and WANDB_API_KEY are Weights & Biases' own.
    every_s
        How often to read the metrics, seconds.
    """
    settings = load(config)
    if settings.metrics is None:
        raise ConfigError("need a table [metrics] in the config, there is none")
    if tensorboard is None and not wandb:
        raise ConfigError("need --tensorboard or --wandb, was neither")
    if every_s <= 0:
        raise ConfigError(f"--every-s: need more than 0, was {every_s:g}")
    with ExitStack() as stack:
        writers: list[Write] = []
        if tensorboard is not None:
            writers.append(_to_tensorboard(tensorboard, stack))
        if wandb:
            writers.append(_to_wandb(wandb, settings.run.name, stack))
        url = f"http://{settings.metrics.address}/metrics"
        with reports_interruption(lambda: "what was read is written"):
            follow(url, writers, every_s)


def follow(url: str, writers: list[Write], every_s: float, rounds: int = 0) -> None:
    """Read and write until interrupted, or ``rounds`` times; a Weaver that is away is waited for.

    Raises StateError if the first read fails.
    """
    complained = False
    for number in count(1):
        try:
            values = dict(read(url))
        except _NO_ANSWER as error:
            text = f"{url}: no metrics: {plain_line(str(error)) or type(error).__name__}"
            if number == 1:
                raise StateError(text) from None
            if not complained:
                console().print(f"{text}; trying again", markup=False)
            complained = True
        else:
            complained = False
            step = int(values.get(_STEP, -1))
            for write in writers:
                write(values, max(step, 0))
        if number == rounds:
            return
        time.sleep(every_s)


def read(url: str) -> Iterator[tuple[str, float]]:
    """Yield name and value of the run's metrics; labels follow the name after slashes."""
    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(url, timeout=_ANSWER_S) as answer:
        text = answer.read().decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix("torchloom_")
            if name != sample.name and name.startswith(_KEPT) and not name.endswith(_SINCE):
                labels = (value.replace("/", "_") for _, value in sorted(sample.labels.items()))
                yield "/".join((name, *labels)), sample.value


def _to_tensorboard(folder: Path, stack: ExitStack) -> Write:
    from tensorboardX import SummaryWriter

    writer = SummaryWriter(str(folder))
    stack.callback(writer.close)

    def write(values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(f"torchloom/{name}", value, step)
        writer.flush()

    return write


def _to_wandb(project: str, run: str, stack: ExitStack) -> Write:
    import wandb

    tracked: Any = wandb.init(
        project=project, group=run, job_type="torchloom", name=f"{run}-torchloom"
    )
    stack.callback(tracked.finish)

    def write(values: Mapping[str, float], step: int) -> None:
        tracked.log({f"torchloom/{name}": value for name, value in values.items()} | {"step": step})

    return write
