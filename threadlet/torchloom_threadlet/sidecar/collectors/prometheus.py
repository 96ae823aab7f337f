"""A file of metrics in Prometheus' text format, as DCGM exporter and node exporter write it."""

import logging
import os
from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from torchloom_threadlet.sidecar.collectors.worker_gpu import UnknownGpuError, WorkerGpu

_UUID = ("UUID", "uuid")
_GPU = ("gpu", *_UUID)
_INSTANCE = "GPU_I_ID"
_HOST = ("Hostname", "hostname", "instance", "nodename")
_EXAMPLES = 5

_BLANKS = {*range(0x7FFFFFF0, 0x7FFFFFF4), *range(1 << 47, (1 << 47) + 4)}
"""DCGM's blank int32 and double: no value, not found, not supported, no permission."""
_BLANK_INT64 = 0x7FFFFFFFFFFFFFF0
"""DCGM's smallest blank int64; as doubles the four are equal."""

_logger = logging.getLogger(__name__)

Labels = Mapping[str, str]
Series = tuple[Labels, float]


class TextfileCollector:
    """Reads ``TORCHLOOM_TEXTFILE`` at each call.

    A metric counts if one of its series is this worker's: a label ``node`` must name the
    worker's node, and labels of a GPU (``gpu``, ``UUID``, ``GPU_I_ID``) the worker's GPU. A metric
    with several remaining series, such as one per disk, is left out. What is left out is logged,
    each reason once.

    A file that is missing or half written yields nothing; this is logged when it happens twice in
    a row.
    """

    def __init__(self, parse: Any, path: Path, node: str, environment: Labels) -> None:
        self._parse = parse
        self._path = path
        self._node = node
        self._environment = environment
        self._failed = False
        self._logged: set[str] = set()

    @classmethod
    def find(
        cls, pid: int, node: str, environment: Labels = os.environ
    ) -> "TextfileCollector | None":
        """Return the collector, or None if the environment names no file."""
        path = environment.get("TORCHLOOM_TEXTFILE")
        if not path:
            return None
        try:
            from prometheus_client.parser import text_string_to_metric_families
        except ImportError:
            _logger.warning("TORCHLOOM_TEXTFILE is not read: prometheus_client is not installed")
            return None
        return cls(text_string_to_metric_families, Path(path), node, environment)

    def collect(self) -> dict[str, float]:
        """Return the metrics in the file now."""
        try:
            metrics = self._read()
        except (OSError, ValueError) as error:
            if self._failed:
                self._log_once("unreadable", f"cannot be read: {error}; trying again")
            self._failed = True
            return {}
        self._failed = False
        values: dict[str, float] = {}
        left_out: dict[str, list[str]] = defaultdict(list)
        for name, every in metrics.items():
            measured = [one for one in every if not _is_blank(*one)]
            own = self._own(measured)
            if len(own) == 1:
                values[name] = own[0][1]
            elif own:
                left_out["as they have several series"].append(f"{name} (by {_differing(own)})")
            elif measured:
                left_out["as no series is of this worker's GPU or node"].append(name)
            else:
                left_out["as they have no value (one of DCGM's blank values)"].append(name)
        for reason, names in left_out.items():
            more = f", ... ({len(names)} in all)" if len(names) > _EXAMPLES else ""
            examples = ", ".join(names[:_EXAMPLES])
            self._log_once(reason, f"metrics left out, {reason}: {examples}{more}")
        return values

    def _read(self) -> dict[str, list[Series]]:
        """Return metric name to series."""
        lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        # The parser would rename a metric that a comment declares as a counter.
        text = "".join(line for line in lines if not line.startswith("#"))
        metrics: dict[str, list[Series]] = defaultdict(list)
        for family in self._parse(text):
            for sample in family.samples:
                metrics[sample.name].append((sample.labels, float(sample.value)))
        return metrics

    @cached_property
    def _gpu(self) -> WorkerGpu | None:
        try:
            return WorkerGpu.find(self._environment)
        except UnknownGpuError as error:
            self._log_once("gpu", f"no GPU's metrics are read: {error}")
            return None

    def _own(self, every: list[Series]) -> list[Series]:
        """Return this worker's series, as far as their labels show."""
        own = [one for one in every if self._is_own(one[0])]
        instances = [one for one in own if one[0].get(_INSTANCE)]
        hosts = [one for one in own if self._node in {one[0].get(label) for label in _HOST}]
        return own if len(own) == 1 else instances or hosts or own

    def _is_own(self, labels: Labels) -> bool:
        if labels.get("node", self._node) != self._node:
            return False
        if not any(labels.get(label) for label in _GPU):
            return True
        gpu = self._gpu
        if gpu is None or labels.get(_INSTANCE, "") not in ("", gpu.instance):
            return False
        uuid = next((labels[label] for label in _UUID if labels.get(label)), "")
        if uuid and gpu.uuid:
            return uuid.lower().removeprefix("gpu-").startswith(gpu.uuid)
        return bool(gpu.index) and labels.get("gpu") == gpu.index

    def _log_once(self, reason: str, text: str) -> None:
        if reason not in self._logged:
            self._logged.add(reason)
            _logger.warning("TORCHLOOM_TEXTFILE %s: %s", self._path, text)


def _is_blank(labels: Labels, value: float) -> bool:
    """Return whether this is one of DCGM's numbers for a missing value."""
    return any(label in labels for label in _GPU) and (value in _BLANKS or value >= _BLANK_INT64)


def _differing(every: list[Series]) -> str:
    """Return the labels by which series differ."""
    names = sorted({name for labels, _ in every for name in labels})
    return ", ".join(name for name in names if len({one.get(name) for one, _ in every}) > 1)
