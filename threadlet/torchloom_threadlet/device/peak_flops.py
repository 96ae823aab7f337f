"""How many floating-point operations a GPU can make in a second, by its name."""

_PEAKS = (
    ("B200", 2250e12),
    ("GH200", 989e12),
    ("H200", 989e12),
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("H100", 989e12),
    ("A100", 312e12),
    ("L40S", 362e12),
    ("L4", 121e12),
    ("A30", 165e12),
    ("V100", 125e12),
)
"""Dense bf16, on a V100 fp16, in tensor cores, by NVIDIA's data sheets; the first match counts."""


def peak_flops(name: str) -> float | None:
    """Return the peak of a card in FLOP/s, None for an unknown one or a part of one (MIG)."""
    if "MIG" in name:
        return None
    words = f" {name.replace('-', ' ')} "
    return next((peak for key, peak in _PEAKS if f" {key} " in words), None)
