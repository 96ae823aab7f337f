"""Build the workload of the simulated run from the config: the bytes that each mode sends."""

from collections.abc import Callable

from torchloom_core.config.schema import Allreduce
from torchloom_core.lab.simulate.allreduce_run import Mode, Workload

_TOPK_SHARE = 0.01
"""Default share of values that a CompressedProcessGroup sends with top-k."""

SENT: dict[str, Callable[[int], float]] = {
    "none": lambda ranks: 1.0,
    "bf16": lambda ranks: 0.5,
    "fp16": lambda ranks: 0.501,
    "int8": lambda ranks: 0.254,
    # An allgather: (n - 1) 6 share N bytes, where none sends 2 (n - 1)/n 4 N.
    "topk": lambda ranks: 0.75 * _TOPK_SHARE * ranks,
}
"""Mode to the bytes that a rank sends of a float32 gradient, relative to ``none``, as a function of
the number of ranks; see docs/compression.md."""


def ring_bytes(payload_bytes: float, ranks: int) -> float:
    """Return the bytes that each rank of a ring sends to reduce a payload."""
    return 2.0 * (ranks - 1) / ranks * payload_bytes


def workload_of(job: Allreduce, ranks: int, *, noise: bool = True) -> Workload:
    """Return the workload for a ring of ``ranks``, with ``2 (ranks - 1)`` hops."""
    plain = ring_bytes(job.gradient_bytes, ranks)
    modes = {
        name: Mode(
            sent_bytes=plain * (SENT[name](ranks) if mode.sent is None else mode.sent),
            compress_s=mode.compress_s,
            quality=mode.quality,
            link_use=mode.link_use,
        )
        for name, mode in job.modes.items()
    }
    return Workload(
        ranks=ranks,
        compute_s=job.compute_s,
        overlap=job.overlap,
        latency_s=2 * (ranks - 1) * job.latency_s,
        noise=job.noise if noise else 0.0,
        gradient_bytes=job.gradient_bytes,
        modes=modes,
    )
