"""What a sample of NVML costs the sidecar, and which of its metrics this GPU has.

``python -m experiments.gpu.nvml_cost cuda``; ``run.py`` calls this.
"""

import logging
import os
import time
from functools import partial
from importlib.util import find_spec
from statistics import median

from experiments.bench.figure import Figure, percentile
from experiments.gpu.section import Device, Measurement, Skipped, main, report
from torchloom_threadlet.sidecar.collectors.nvml import NvmlCollector

_SAMPLES = 200
_INTERVAL_S = 1.0
_LIMIT = 0.05


class _Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def measure(device: Device) -> list[Measurement]:
    """Measure one figure."""
    return [partial(sampled, device)]


def sampled(device: Device) -> Figure:
    """Take samples as the sidecar does."""
    if find_spec("pynvml") is None:
        raise Skipped("nvidia-ml-py is not installed")
    logged = _Lines()
    logger = logging.getLogger("torchloom_threadlet")
    logger.addHandler(logged)
    logger.setLevel(logging.INFO)
    collector = NvmlCollector.find(os.getpid(), "gpu")
    if collector is None:
        raise Skipped(": ".join(["NVML finds no GPU of this process", *logged.lines]))
    device.synchronize()  # the context is there, as in a trainer
    taken_s, metrics = [], dict[str, float]()
    for _ in range(_SAMPLES):
        began_s = time.perf_counter()
        metrics = collector.collect()
        taken_s.append(time.perf_counter() - began_s)
    what = "a sample of NVML / the second between two samples"
    numbers = {
        "sample_ms": 1e3 * median(taken_s),
        "p99_ms": 1e3 * percentile(taken_s, 0.99),
        "first_ms": 1e3 * taken_s[0],
        "metrics": float(len(metrics)),
    }
    for note in (f"there: {', '.join(sorted(metrics))}", *logged.lines):
        report(note=note)
    ratio = median(taken_s) / _INTERVAL_S
    return Figure("nvml_sample", what, _LIMIT, "at most", [ratio], numbers)


if __name__ == "__main__":
    main(measure)
