"""Intervals, the machine's description, and files of results."""

import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scipy.stats import t as student

from experiments.bench.machine import describe, with_torch

HERE = Path(__file__).parent


def half_interval(values: Sequence[float]) -> float:
    """Return half the 95 % interval of the mean, by Student's t; 0 of one value."""
    if len(values) < 2:
        return 0.0
    error = statistics.stdev(values) / len(values) ** 0.5
    return float(student.ppf(0.975, len(values) - 1)) * error


def write(name: str, results: dict[str, Any]) -> None:
    """Write results, and what they were measured on, as JSON."""
    machine = {**with_torch(), "cpu": describe()["cpu"], "load_average": os.getloadavg()}
    text = json.dumps({"machine": machine, **results}, indent=1)
    (HERE / name).write_text(text + "\n", encoding="utf-8")
