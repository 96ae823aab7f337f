"""The tests for all collectors; a collector's own tests subclass them."""

import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from torchloom_core.wire.limits import MAX_METRICS, METRIC_NAME

_NO_PID = 2**22 + 1
"""Above the largest that Linux gives to a process."""


class CollectorContract:
    r"""Subclass it as ``class TestMyCollector(CollectorContract)`` and pytest runs it.

    Attributes
    ----------
    find : callable
        The function that the entry point names. It has to find something to measure here: give
        it a file or a library to read if this machine lacks the device.

    Examples
    --------
    >>> from torchloom_core.testing import CollectorContract
    >>> class Load:
    ...     def __init__(self, pid, node):
    ...         self.metric = f"load of {node}"
    ...
    ...     def collect(self):
    ...         return {self.metric: 0.5}
    >>> class TestLoad(CollectorContract):
    ...     find = Load
    >>> TestLoad().test_it_returns_numbers_by_metric_name()
    Traceback (most recent call last):
    AssertionError: need names as \A[A-Za-z_:][A-Za-z0-9_:.-]{0,127}\Z, was 'load of node-1'
    """

    find: ClassVar[Callable[[int, str], Any]]

    def collected(self, pid: int, times: int = 1) -> list[Any]:
        """Return what ``collect`` returns each time, called from threads as the sidecar does."""
        with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as others:
            collector = first.submit(type(self).find, pid, "node-1").result()
            if collector is None:
                return []
            return [others.submit(collector.collect).result() for _ in range(times)]

    def test_it_returns_numbers_by_metric_name(self) -> None:
        """Check names, values and their number; a missing value is left out or NaN."""
        found = self.collected(os.getpid())
        assert found, "need a collector for this process, was None"
        (metrics,) = found
        assert metrics, f"need metrics, was {metrics!r}"
        assert len(metrics) <= MAX_METRICS, f"need at most {MAX_METRICS}, was {len(metrics)}"
        for name, value in metrics.items():
            assert re.search(METRIC_NAME, name), f"need names as {METRIC_NAME}, was {name!r}"
            float(value)

    def test_it_collects_again_and_again(self) -> None:
        """Check that it has no state that ends, and that nothing depends on the thread."""
        assert len(self.collected(os.getpid(), times=3)) == 3

    def test_the_end_of_the_trainer_is_no_error(self) -> None:
        """Check that neither ``find`` nor ``collect`` raises for a process that has ended."""
        self.collected(_NO_PID)
