"""Detect a plugin that reads a clock."""

import contextlib
import datetime
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

_FUNCTIONS = (
    "time",
    "time_ns",
    "clock_gettime",
    "clock_gettime_ns",
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "process_time",
    "process_time_ns",
    "sleep",
)
_CLASSES = ((datetime.datetime, ("now", "utcnow", "today")), (datetime.date, ("today",)))


@contextlib.contextmanager
def clock_trap(plugin: type[Any]) -> Iterator[list[str]]:
    """Make every clock raise if the plugin reads it; yield the list of clocks that were read.

    Covers the functions of :mod:`time` and the ``datetime`` and ``date`` classes, whether the
    plugin's module reads them through their module or imported them by name. A library that
    the plugin calls may read them, as joblib does for its timings.
    """
    read: list[str] = []
    package = plugin.__module__.partition(".")[0]

    def trap(clock: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def raise_instead(*args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if caller.partition(".")[0] != package:
                return original(*args, **kwargs)
            read.append(clock)
            raise AssertionError(f"need no clock but view.now_ns, was {clock}()")

        return raise_instead

    traps: dict[Any, Any] = {
        getattr(time, name): trap(f"time.{name}", getattr(time, name)) for name in _FUNCTIONS
    }
    for cls, clocks in _CLASSES:
        body = {
            clock: trap(f"datetime.{cls.__name__}.{clock}", getattr(cls, clock)) for clock in clocks
        }
        traps[cls] = type(cls.__name__, (cls,), body)
    with contextlib.ExitStack() as stack:
        for module in (time, datetime, sys.modules[plugin.__module__]):
            for name, value in list(vars(module).items()):
                with contextlib.suppress(TypeError):  # not hashable, so not a clock
                    if value in traps:
                        stack.enter_context(mock.patch.object(module, name, traps[value]))
        yield read
