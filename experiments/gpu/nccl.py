"""What ``abort`` of torchft's NCCL group takes, and the states that the Flight Recorder keeps.

``python -m experiments.gpu.nccl cuda``; ``run.py`` calls this. Two ranks share the GPU where NCCL
allows it (from 2.30 on). On a CPU a gloo group of one rank takes its place.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import timedelta
from functools import partial
from statistics import median
from typing import Any

import torch
from torch.distributed import AllreduceOptions, TCPStore
from torchft import ProcessGroupGloo, ProcessGroupNCCL
from torchft.process_group import reconfigure_with_store

from experiments.bench.figure import Figure
from experiments.gpu.section import Device, Measurement, Skipped, main, report
from torchloom_threadlet.flight_recorder import flight_recorder

_TIMEOUT_S = 20.0
_LIMIT = 0.1
_ABORTS = 5
_NUMBERS = 1 << 20
_HOST = "127.0.0.1"
_AFTER_S = 2.0
_LOOKED_S = 1.0
"""A group looks at its collectives at intervals; until then they are ``scheduled``."""
_SECOND = "--second-rank"


def measure(device: Device) -> list[Measurement]:
    """Abort a group of one rank and form it anew; free a rank that waits for another."""
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")  # an abort ends no process
    store = TCPStore(_HOST, 0, is_master=True, wait_for_workers=False)
    return [partial(alone, device, store), partial(waiting, device, store)]


def group_of(device: Device, store: TCPStore, number: str, rank: int, ranks: int) -> Any:
    """Return a group that is ready for collectives."""
    timeout = timedelta(seconds=_TIMEOUT_S)
    group = (ProcessGroupNCCL if device.is_gpu else ProcessGroupGloo)(timeout=timeout)
    reconfigure_with_store(group, f"{_HOST}:{store.port}/{number}", rank, ranks, timeout)
    return group


def alone(device: Device, store: TCPStore) -> Figure:
    """Reduce, abort and form the group again, a few times."""
    if device.is_gpu and not torch.distributed.is_nccl_available():
        raise Skipped("this torch has no NCCL")
    numbers = torch.ones(_NUMBERS, device=device.torch)
    formed_s, aborted_s = [], []
    for turn in range(_ABORTS):
        began_s = time.perf_counter()
        group = group_of(device, store, f"alone-{turn}", 0, 1)
        group.allreduce([numbers], AllreduceOptions()).wait()
        device.synchronize()
        formed_s.append(time.perf_counter() - began_s)
        if turn == 0:
            report(note=f"Flight Recorder, a group of one: {recorded()}")
        began_s = time.perf_counter()
        group.abort()
        aborted_s.append(time.perf_counter() - began_s)
    if float(numbers[0]) != 1.0:
        raise RuntimeError(f"the sum of one rank's ones is {float(numbers[0])}")
    what = f"abort of a group of one rank / the group's timeout of {_TIMEOUT_S:g} s"
    figures = {"abort_ms": 1e3 * median(aborted_s), "form_and_reduce_ms": 1e3 * median(formed_s)}
    ratios = [each / _TIMEOUT_S for each in aborted_s]
    return Figure("abort_alone", what, _LIMIT, "at most", ratios, figures)


def waiting(device: Device, store: TCPStore) -> Figure:
    """Have another rank join a first reduction and not a second; free this one by ``abort``."""
    if not device.is_gpu:
        raise Skipped("two ranks on one GPU: no GPU")
    os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    command = [sys.executable, "-m", "experiments.gpu.nccl", "cuda", _SECOND, str(store.port)]
    second = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        numbers = torch.ones(_NUMBERS, device=device.torch)
        try:
            group = group_of(device, store, "two", 0, 2)
            group.allreduce([numbers], AllreduceOptions()).wait()
            device.synchronize()
        except Exception as error:
            raise Skipped(
                f"two ranks on one GPU: NCCL refuses: {str(error).strip().splitlines()[-1]}"
            ) from error
        aborted_s: list[float] = []

        def abort() -> None:
            time.sleep(_AFTER_S - _LOOKED_S)
            report(note=f"Flight Recorder, one of two waits: {recorded()}")
            aborted_s.append(time.perf_counter())
            group.abort()

        thread = threading.Thread(target=abort)
        thread.start()
        outcome = "without an error"
        try:
            group.allreduce([numbers], AllreduceOptions()).wait()
            device.synchronize()
        except Exception as error:  # noqa: BLE001 - what it raises is what is measured
            outcome = f"by {type(error).__name__}"
        freed_s = time.perf_counter()
        thread.join()
        report(note=f"the waiting rank is freed {outcome}; errored(): {group.errored()}")
    finally:
        second.kill()
        second.wait()
    after_s = freed_s - aborted_s[0]
    what = f"until abort frees a waiting rank / the group's timeout of {_TIMEOUT_S:g} s"
    ratio = after_s / _TIMEOUT_S
    return Figure("abort_frees", what, _LIMIT, "at most", [ratio], {"freed_ms": 1e3 * after_s})


def recorded() -> str:
    """Return how many collectives the Flight Recorder has in each state, once it has looked."""
    time.sleep(_LOOKED_S)
    try:
        entries = json.loads(flight_recorder() or "{}").get("entries", ())
    except ValueError:
        return "a dump that is cut"
    states = Counter(f"{each['profiling_name']} {each['state']}" for each in entries)
    return ", ".join(f"{state}: {number}" for state, number in states.items()) or "nothing"


def be_second(port: int) -> None:
    """Join the first reduction alone, then do nothing until killed."""
    device = Device("cuda")
    store = TCPStore(_HOST, port, is_master=False)
    group = group_of(device, store, "two", 1, 2)
    numbers = torch.ones(_NUMBERS, device=device.torch)
    group.allreduce([numbers], AllreduceOptions()).wait()
    device.synchronize()
    time.sleep(10 * _TIMEOUT_S)


if __name__ == "__main__":
    if _SECOND in sys.argv:
        be_second(int(sys.argv[-1]))
    else:
        main(measure)
