"""What coding costs in each mode: nanoseconds a byte of gradient, four ranks that share the cores.

    python experiments/compression/coding.py [--ranks 4] [--steps 12]

The tuner's first guess of a mode that has not run yet.
"""

import argparse
import multiprocessing
import statistics
from multiprocessing.queues import Queue

import torch
from torch.distributed import AllreduceOptions
from torchft import ProcessGroupGloo
from torchft.process_group import ReconfigureOptions

from torchloom_threadlet.compression import MODES, CompressedProcessGroup

_WIDTH, _MATRICES = 512, 48
_WARM = 3
_WAIT_S = 120.0


def work(
    rank: int, steps: int, queues: "list[Queue[str]]", results: "Queue[tuple[str, float]]"
) -> None:
    """Reduce random numbers, some of them much larger than others, in each mode in turn."""
    torch.set_num_threads(1)
    numbers = _MATRICES * _WIDTH * _WIDTH
    model = [torch.nn.Parameter(torch.empty(_WIDTH, _WIDTH)) for _ in range(_MATRICES)]
    for number, mode in enumerate(MODES, 1):
        pg = CompressedProcessGroup(ProcessGroupGloo(), mode=mode, parameters=model)
        opts = ReconfigureOptions()
        for queue in queues:
            queue.put(f"{rank} {pg.get_reconfigure_handle()}")
        handles = dict(queues[rank].get(timeout=_WAIT_S).split(" ", 1) for _ in queues)
        opts.uuid, opts.handles = number, [handles[str(other)] for other in range(len(queues))]
        pg.reconfigure(opts).wait()
        taken = []
        for step in range(steps):
            torch.manual_seed(len(queues) * step + rank)
            gradient = torch.randn(numbers) * torch.rand(numbers) ** 4
            pg.allreduce([gradient], AllreduceOptions()).wait()
            taken.append(pg.take_figures().metrics()["compress_s"] / gradient.nbytes)
        results.put((mode, statistics.median(taken[_WARM:])))
        for queue in queues:
            queue.put(f"{rank} done")
        for _ in queues:
            queues[rank].get(timeout=_WAIT_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    queues = [context.Queue() for _ in range(args.ranks)]
    results = context.Queue()
    ranks = [
        context.Process(target=work, args=(rank, args.steps, queues, results), daemon=True)
        for rank in range(args.ranks)
    ]
    for process in ranks:
        process.start()
    for mode in MODES:
        each = [results.get(timeout=_WAIT_S)[1] for _ in ranks]
        print(f"{mode:10} {statistics.median(each) * 1e9:6.2f} ns a byte", flush=True)
    for process in ranks:
        process.join()


if __name__ == "__main__":
    main()
