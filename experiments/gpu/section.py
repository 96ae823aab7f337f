"""What the sections share: the device, times on it, and the lines of JSON that one prints."""

import json
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from statistics import median
from typing import Any

import torch

from experiments.bench.figure import Figure


class Skipped(Exception):
    """The machine lacks what a section needs; the text says what."""


class Device:
    """The device that is measured: the first GPU, or the CPU, where everything is small."""

    def __init__(self, name: str) -> None:
        self.torch = torch.device(name)
        self.is_gpu = name == "cuda"

    def synchronize(self) -> None:
        """Wait until everything issued is done."""
        if self.is_gpu:
            torch.cuda.synchronize()

    def sized(self, on_gpu: int, small: int) -> int:
        """Return how much to do here."""
        return on_gpu if self.is_gpu else small

    def seconds(self, run: Callable[[], object], times: int) -> float:
        """Return the mean time of a call, of the device and the host together."""
        self.synchronize()
        began_s = time.perf_counter()
        for _ in range(times):
            run()
        self.synchronize()
        return (time.perf_counter() - began_s) / times

    def best_s(self, run: Callable[[], object], times: int, rounds: int = 5) -> float:
        """Return the median over some rounds of the mean time of a call, after one to warm up."""
        run()
        return median(self.seconds(run, times) for _ in range(rounds))


class Synchronisations:
    """Counts where this thread makes the host wait for the GPU.

    torch's mode ``warn`` is used: an error would be swallowed, as ``loom.step`` raises nothing.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self.count = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count in this block."""
        if not self._device.is_gpu:
            yield
            return
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield
            finally:
                torch.cuda.set_sync_debug_mode("default")
        self.count += sum("synchroniz" in str(each.message) for each in caught)

    def check(self) -> None:
        """Raise RuntimeError if a synchronisation is not counted."""
        if not self._device.is_gpu:
            return
        probe = Synchronisations(self._device)
        with probe.watched():
            torch.ones(1, device=self._device.torch).item()
        if probe.count == 0:
            raise RuntimeError(
                "torch.cuda.set_sync_debug_mode counted no synchronisation of item()"
            )


Measurement = Callable[[], Figure]


def report(**what: Any) -> None:
    """Print a line for the parent process: at once, so that a later failure loses nothing."""
    print("\n" + json.dumps(what), flush=True)


def named(arguments: Sequence[str]) -> str:
    """Return the device of the command line, ``cuda`` or ``cpu``; exit with 2 if it is neither."""
    name = " ".join(arguments)
    problem = ""
    if name not in ("cuda", "cpu"):
        problem = f"need one argument, cuda or cpu, was {name or 'nothing'}"
    elif name == "cuda" and not torch.cuda.is_available():
        problem = f"need a GPU for cuda: torch {torch.__version__} finds none"
    if problem:
        print(problem, file=sys.stderr)
        sys.exit(2)
    return name


def main(measurements: Callable[[Device], Iterable[Measurement]]) -> None:
    """Take the measurements on the device of the command line, each whatever came of the others."""
    device = Device(named(sys.argv[1:]))

    def attempt(take: Callable[[], object]) -> None:
        try:
            take()
        except Skipped as reason:
            report(skipped=str(reason))
        except Exception as error:  # noqa: BLE001 - reported, and printed whole
            traceback.print_exc()
            report(failed=f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")

    def each() -> None:
        for take in measurements(device):
            attempt(lambda take=take: report(figure=asdict(take())))  # type: ignore[misc]

    attempt(each)
