"""The trainer of the step benchmark: times ``loom.step`` against a ``deque.append``, in turns.

``python step_trainer.py ROUNDS PACED``: attach, wait for a line, print one line of JSON.
"""

import sys
import time
from collections import deque
from collections.abc import Callable
from itertools import repeat
from statistics import median

from figure import percentile
from scene import report

import torchloom_threadlet

_BLOCK = 100
_PACE_S = 0.001


def per_call_ns(call: Callable[[], object]) -> float:
    """Return the mean time of a call over one block, the loop's own included."""
    started = time.perf_counter_ns()
    for _ in repeat(None, _BLOCK):
        call()
    return (time.perf_counter_ns() - started) / _BLOCK


def single_calls_ns(step: Callable[[], object], calls: int, pace_s: float) -> list[float]:
    """Return the time of each call; between two the thread sleeps for ``pace_s``."""
    took = []
    for _ in range(calls):
        if pace_s:
            time.sleep(pace_s)
        started = time.perf_counter_ns()
        step()
        took.append(float(time.perf_counter_ns() - started))
    return took


def main() -> None:
    """Measure with the options of the command line."""
    rounds, paced_calls = map(int, sys.argv[1:])
    loom = torchloom_threadlet.attach(framework="bench")
    sys.stdin.readline()
    waiting: deque[float] = deque(maxlen=4096)

    def append() -> None:
        waiting.append(0.5)

    def nothing() -> None:
        pass

    def step() -> None:
        loom.step(loss=0.5)

    blocks = [(per_call_ns(nothing), per_call_ns(append), per_call_ns(step)) for _ in range(rounds)]
    empty, appended, stepped = (median(column) for column in zip(*blocks, strict=True))
    close = single_calls_ns(step, rounds * _BLOCK, 0)
    paced = single_calls_ns(step, paced_calls, _PACE_S)
    report(
        append_ns=appended - empty,
        step_ns=stepped - empty,
        close_p50_ns=median(close),
        close_p99_ns=percentile(close, 0.99),
        close_max_ns=max(close),
        paced_p50_ns=median(paced),
        paced_p99_ns=percentile(paced, 0.99),
        paced_max_ns=max(paced),
    )
    loom.close()


if __name__ == "__main__":
    main()
