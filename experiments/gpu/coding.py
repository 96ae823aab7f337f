"""Gradient bytes a second that each mode of compression codes, beside a plain copy on the device.

``python -m experiments.gpu.coding cuda``; ``run.py`` calls this.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from experiments.bench.figure import Figure
from experiments.gpu.section import Device, Measurement, main
from torchloom_threadlet.compression.codecs import Codec, Memory
from torchloom_threadlet.compression.collectives import Peers, reduce_together
from torchloom_threadlet.compression.modes import make_codecs
from torchloom_threadlet.compression.quantizers import Bfloat16, Blockwise, Float16, Int8

_MATRIX = 4096
_QUANTIZERS = {"bf16": Bfloat16, "fp16": Float16, "int8": Int8}
_INT8_LIMIT = 0.5
_TIMES, _ROUNDS = 10, 5


def measure(device: Device) -> Iterator[Measurement]:
    """Measure the modes, and before each the copy."""
    side, matrices = device.sized(_MATRIX, 256), device.sized(4, 2)
    parameters = [torch.nn.Parameter(torch.empty(side, side)) for _ in range(matrices)]
    gradient = torch.randn(matrices * side * side, device=device.torch)
    for mode, codec in make_codecs(0.01, 4, parameters).items():
        yield partial(coded, mode, codec, gradient, device)


def coded(mode: str, codec: Codec, gradient: Tensor, device: Device) -> Figure:
    """Return how fast one mode codes, of a copy."""
    target = torch.empty_like(gradient)
    times, rounds = device.sized(_TIMES, 1), device.sized(_ROUNDS, 1)

    def rate_of(run: Callable[[], object]) -> float:
        return gradient.nbytes / 1e9 / device.best_s(run, times, rounds)

    def whole() -> object:
        return reduce_together([codec.reduce(gradient, Memory(), Peers(0, 1))])

    copied = rate_of(lambda: target.copy_(gradient))
    rate = rate_of(whole)
    numbers = {"copy_gb_per_s": copied, "allreduce_coding_gb_per_s": rate}
    what = f"gradient bytes a second that {mode} codes in an allreduce of one rank / a copy's"
    if mode in _QUANTIZERS:
        quantizer, rows = _QUANTIZERS[mode](), gradient.view(1, -1)
        narrow = quantizer.encode(rows)
        encode, decode = (
            rate_of(lambda: quantizer.encode(rows)),
            rate_of(lambda: quantizer.decode(narrow)),
        )
        numbers |= {"encode_gb_per_s": encode, "decode_gb_per_s": decode}
        if isinstance(quantizer, Int8):  # has kernels; these are torch's operations
            numbers |= {
                "torch_encode_gb_per_s": rate_of(lambda: Blockwise.encode(quantizer, rows)),
                "torch_decode_gb_per_s": rate_of(lambda: Blockwise.decode(quantizer, narrow)),
            }
        rate = min(encode, decode)
        what = f"gradient bytes a second that {mode} encodes or decodes, the slower / a copy's"
    limit = _INT8_LIMIT if mode == "int8" else None
    return Figure(f"coding_{mode}", what, limit, "at least", [rate / copied], numbers)


if __name__ == "__main__":
    main(measure)
