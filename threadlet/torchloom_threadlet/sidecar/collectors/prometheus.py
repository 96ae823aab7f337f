"""A file of metrics in Prometheus' text format: node_exporter's textfile convention, or DCGM's."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchloom_threadlet.cleaning import MetricNames

_logger = logging.getLogger(__name__)


class TextfileCollector:
    """Reads ``TORCHLOOM_TEXTFILE`` again whenever it is asked.

    A sample counts if it has no labels, or none but ``node``, which must then be this
    worker's. A file that is missing or half written for a moment yields nothing.
    """

    def __init__(self, parse: Any, path: Path, node: str) -> None:
        self._parse = parse
        self._path = path
        self._node = node
        self._names = MetricNames()

    @classmethod
    def find(
        cls, node: str, environment: Mapping[str, str] = os.environ
    ) -> "TextfileCollector | None":
        """Return the collector, or None where no file is named."""
        path = environment.get("TORCHLOOM_TEXTFILE")
        if not path:
            return None
        try:
            from prometheus_client.parser import text_string_to_metric_families
        except ImportError:
            _logger.warning("TORCHLOOM_TEXTFILE is not read: prometheus_client is not installed")
            return None
        return cls(text_string_to_metric_families, Path(path), node)

    def collect(self) -> dict[str, float]:
        """Return the metrics that are in the file now."""
        try:
            families = list(self._parse(self._path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}
        return {
            self._names.clean(sample.name): float(sample.value)
            for family in families
            for sample in family.samples
            if sample.labels in ({}, {"node": self._node})
        }
