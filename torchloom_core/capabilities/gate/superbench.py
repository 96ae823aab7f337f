"""Compare the results of SuperBench, one line per node, with a baseline; for ``torchloom gate``."""

import json
import math
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from torchloom_core.floor.errors import ConfigError
from torchloom_core.floor.files import open_regular
from torchloom_core.interface.foreign import shown

MOST_NODES = 20_000
LONGEST_LINE = 16 << 20
"""Bytes of one node's results."""

FLOORS = {"kernel-launch/*": 0.01, "nccl-bw*/*_time": 10.0, "nccl-bw*/*bw": 0.1}
"""Pattern of metrics to a difference that is noise: ms, us and GB/s of SuperBench."""

FEWEST_NODES = 3
"""Nodes of a median: of two it cannot be said which one is off."""

_RANK = re.compile(r":\d+$")
_LESS = re.compile(r"time|latency|lat_|overhead|cost", re.IGNORECASE)
_MORE = re.compile(r"bw|bandwidth|throughput|flops|iops|ib-loopback|ib-traffic", re.IGNORECASE)


class Finding(NamedTuple):
    """What is wrong with a node; ``baseline`` and ``off`` (a share) are NaN if they do not apply.

    ``problem`` is ``slow``, ``failed`` (a return code), ``missing`` or ``not finite``. Of missing
    metrics, ``metric`` is the benchmark and ``value`` their number.
    """

    node: str
    metric: str
    problem: str
    value: float
    baseline: float
    off: float

    @property
    def text(self) -> str:
        """The finding in one line, without the node."""
        if self.problem == "slow":
            return f"{self.metric} {self.value:g}, baseline {self.baseline:g} ({self.off:+.1%})"
        if self.problem == "missing":
            return f"{self.metric}: {self.value:g} metrics missing"
        return f"{self.metric} {self.value:g}: {self.problem}"


@dataclass
class Results:
    """The results of all nodes: of each metric the rows of its nodes, and their values."""

    nodes: list[str] = field(default_factory=list)
    values: "dict[str, tuple[array[int], array[float]]]" = field(default_factory=dict)

    def add(self, node: str, metrics: Mapping[str, float]) -> None:
        """Add a node."""
        row = len(self.nodes)
        self.nodes.append(node)
        for metric, value in metrics.items():
            rows, values = self.values.setdefault(metric, (array("I"), array("d")))
            rows.append(row)
            values.append(value)


def read_results(path: Path) -> Results:
    """Read ``results-summary.jsonl``: a JSON object per node, ``node`` and metrics.

    Raises
    ------
    ConfigError
        File, line, rule and value.
    """
    results, seen = Results(), set[str]()
    for number, line in _lines(path):
        place = f"{path}:{number}"
        metrics = _object(line, place)
        node = metrics.pop("node", None)
        if not isinstance(node, str) or not node.isprintable() or not node:
            raise ConfigError(f"{place}: need a node with a name, was {shown(node)}")
        if node in seen:
            raise ConfigError(f"{place}: need one line per node, was a second one of {shown(node)}")
        if len(seen) == MOST_NODES:
            raise ConfigError(f"{place}: need at most {MOST_NODES} nodes, was one more")
        seen.add(node)
        results.add(node, _numbers(metrics, place))
    if not results.nodes:
        raise ConfigError(f"{path}: need the results of a node, was none")
    return results


def read_baseline(path: Path) -> dict[str, float]:
    """Read a baseline: one JSON object of metrics, with or without ``:RANK``."""
    text = b"".join(line for _, line in _lines(path))
    numbers = _numbers(_object(text, str(path)), str(path))
    for metric, value in numbers.items():
        if not math.isfinite(value):
            raise ConfigError(f"{path}: need a finite {shown(metric)}, was {value}")
    return numbers


def findings(
    results: Results,
    baseline: Mapping[str, float] | None = None,
    *,
    share: float = 0.05,
    floors: Mapping[str, float] | None = None,
) -> list[Finding]:
    """Return what is wrong with the nodes, node by node, the largest difference first.

    Parameters
    ----------
    baseline : mapping, optional
        Metric to value; a node that lacks one of them has a finding. Default: the median of the
        nodes, for metrics of at least ``FEWEST_NODES`` of them.
    share : float
        Difference that is a finding, a share of the baseline. Only a worse value is one.
    floors : mapping, optional
        Pattern of metrics to a difference, in the metric's unit, below which none is; the first
        that matches counts, before those of ``FLOORS``.
    """
    every = {**(floors or {}), **{k: v for k, v in FLOORS.items() if k not in (floors or {})}}
    found: defaultdict[int, list[Finding]] = defaultdict(list)
    missing: defaultdict[int, Counter[str]] = defaultdict(Counter)
    rows_of: defaultdict[str, set[int]] = defaultdict(set)
    for metric, (rows, values) in results.values.items():
        rows_of[_RANK.sub("", metric)].update(rows)
        benchmark, _, name = metric.partition("/")
        if name.startswith("return_code"):
            bad = [(at, "failed") for at, value in enumerate(values) if value != 0]
        else:
            bad = [
                (at, "not finite") for at, value in enumerate(values) if not math.isfinite(value)
            ]
        for at, problem in bad:
            node = results.nodes[rows[at]]
            found[rows[at]].append(Finding(node, metric, problem, values[at], math.nan, math.nan))
        if baseline is None and 2 * len(rows) > len(results.nodes):
            for row in set(range(len(results.nodes))) - set(rows):
                missing[row][benchmark] += 1
        if name.startswith("return_code"):
            continue
        usual = _usual(metric, values, baseline)
        if usual is None:
            continue
        worse, least = (1 if is_better_lower(metric) else -1), _floor(metric, every)
        for row, value in zip(rows, values, strict=True):
            lost = (value - usual) * worse
            if lost > max(abs(usual) * share, least):
                off = (value - usual) / abs(usual) if usual else math.inf * worse
                found[row].append(Finding(results.nodes[row], metric, "slow", value, usual, off))
    for metric in baseline or ():
        benchmark = metric.partition("/")[0]
        for row in set(range(len(results.nodes))) - rows_of[_RANK.sub("", metric)]:
            missing[row][benchmark] += 1
    for row, counts in missing.items():
        found[row] += [
            Finding(results.nodes[row], benchmark, "missing", count, math.nan, math.nan)
            for benchmark, count in counts.items()
        ]
    return [one for row in sorted(found) for one in sorted(found[row], key=_weight)]


def is_better_lower(metric: str) -> bool:
    """Return whether a metric is a time or a cost; rates such as throughput are better higher.

    Examples
    --------
    >>> is_better_lower("nccl-bw/allreduce_8_time:0"), is_better_lower("mem-bw/H2D_Mem_BW:0")
    (True, False)
    """
    name = metric.rpartition("/")[2]
    return bool(_LESS.search(name)) or not _MORE.search(metric)


def _usual(
    metric: str, values: Iterable[float], baseline: Mapping[str, float] | None
) -> float | None:
    if baseline is not None:
        return baseline.get(metric, baseline.get(_RANK.sub("", metric)))
    finite = [value for value in values if math.isfinite(value)]
    return median(finite) if len(finite) >= FEWEST_NODES else None


def _floor(metric: str, floors: Mapping[str, float]) -> float:
    name = _RANK.sub("", metric)
    return next((least for glob, least in floors.items() if fnmatchcase(name, glob)), 0.0)


def _weight(one: Finding) -> tuple[int, float]:
    order = ("failed", "missing", "not finite", "slow")
    return order.index(one.problem), -abs(one.off) if one.problem == "slow" else 0.0


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with open_regular(path) as file:
            number = 0
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    raise ConfigError(
                        f"{path}:{number}: need a line of at most {LONGEST_LINE} bytes, was a "
                        f"longer one"
                    )
                if line.strip():
                    yield number, line
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def _object(text: bytes, place: str) -> dict[str, Any]:
    # Not msgspec: Python's json.dump, which SuperBench uses, writes NaN and Infinity as such.
    try:
        read = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{place}: need JSON: {error}") from None
    if not isinstance(read, dict):
        raise ConfigError(f"{place}: need a JSON object, was {shown(read)}")
    return read


def _numbers(metrics: Mapping[str, Any], place: str) -> dict[str, float]:
    numbers = {}
    for metric, value in metrics.items():
        if value is None:
            continue
        if not metric.isprintable():
            raise ConfigError(f"{place}: need a printable metric, was {shown(metric)}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{place}: need a number for {shown(metric)}, was {shown(value)}")
        try:
            numbers[metric] = float(value)
        except OverflowError:
            numbers[metric] = math.inf
    return numbers
