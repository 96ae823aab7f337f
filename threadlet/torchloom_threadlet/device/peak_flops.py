"""How many floating-point operations a GPU can make in a second, by its name.

Based on NVIDIA's data sheets, and on its architecture papers for H100 PCIe, RTX and GeForce. Those
that give the number with sparsity alone, such as 1979 TFLOPS for an H100, have half of it here.
"""

import re

_PEAKS = (
    ("GB300", 2500e12),
    ("GB200", 2500e12),
    ("B300", 2250e12),
    ("B200", 2250e12),
    ("GH200", 989.4e12),
    ("H200 NVL", 835e12),
    ("H200", 989.4e12),
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("H100", 989.4e12),
    ("A100", 312e12),
    ("A40", 149.7e12),
    ("A30", 165e12),
    ("A10", 125e12),
    ("L40S", 362e12),
    ("L40", 181e12),
    ("L4", 121e12),
    ("RTX 6000 Ada", 364.2e12),
    ("RTX A6000", 154.8e12),
    ("RTX 5090$", 209.5e12),  # not its Ti, D or laptop variant
    ("RTX 4090$", 165.2e12),
    ("RTX 3090$", 71e12),
    ("V100 PCIE", 112e12),
    ("V100", 125e12),
)
"""FLOP/s of tensor cores, dense, in bf16 with sums in fp32, on a V100 in fp16.

The first pattern that is in the name counts.
"""


def peak_flops(name: str) -> float | None:
    """Return the peak of a card in FLOP/s, None for an unknown one or a part of one (MIG)."""
    if "MIG" in name:
        return None
    words = name.replace("-", " ")
    return next((peak for key, peak in _PEAKS if re.search(rf"\b{key}(?!\w)", words)), None)
