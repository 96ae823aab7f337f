"""The modes of compression by name."""

from collections.abc import Iterable

from torch import Tensor
from torchft.process_group import ProcessGroup, ProcessGroupBaby

from torchloom_threadlet.compression.codecs import Codec
from torchloom_threadlet.compression.powersgd import Pieces, PowerSGD
from torchloom_threadlet.compression.quantizers import Bfloat16, Float16, Int8, Sharded
from torchloom_threadlet.compression.topk import TopK

NONE = "none"
MODES = (NONE, "bf16", "fp16", "int8", "topk", "powersgd")


def make_codecs(
    topk_share: float, powersgd_rank: int, parameters: Iterable[Tensor] = ()
) -> dict[str, Codec]:
    """Return the codec of each mode but ``none``.

    Raises ValueError if an option is out of its range.
    """
    bf16 = Sharded(Bfloat16())
    return {
        "bf16": bf16,
        "fp16": Sharded(Float16()),
        "int8": Sharded(Int8()),
        "topk": TopK(topk_share),
        "powersgd": PowerSGD(powersgd_rank, Pieces(parameters), bf16),
    }


_EXCHANGED = ("alltoall_base", "allgather")
_NEEDS = {
    "bf16": _EXCHANGED,
    "fp16": _EXCHANGED,
    "int8": _EXCHANGED,
    "topk": ("allgather",),
    "powersgd": _EXCHANGED,  # of a bucket without a matrix
}


def refusal(mode: str, pg: ProcessGroup) -> str:
    """Return why a torchft process group cannot do a mode, and what to do; "" if it can.

    gloo and NCCL have all collectives that the modes need. torchft's groups in a process of their
    own have one pipe for all answers: a second waiting thread could take the first one's.
    """
    if mode != NONE and isinstance(innermost(pg), ProcessGroupBaby):
        name = pg.getBackendName()
        return f"compression {mode} needs a process group in this process, was {name}: use none"
    if not (missing := _missing(mode, pg)):
        return ""
    able = " or ".join(one for one in MODES if not _missing(one, pg))
    name = pg.getBackendName()
    return f"compression {mode} needs {missing}, which {name} lacks: use {able}, or another backend"


def _missing(mode: str, pg: ProcessGroup) -> str:
    """Return the first collective of a mode that the innermost process group lacks."""
    inner = innermost(pg)
    for name in _NEEDS.get(mode, ()):
        if getattr(type(inner), name, None) is getattr(ProcessGroup, name):
            return name
    return ""


def innermost(pg: ProcessGroup) -> ProcessGroup:
    """Return the process group that torchft's wrappers, and ours, wrap; ``pg`` itself if none."""
    while isinstance(inner := getattr(pg, "_pg", None), ProcessGroup):
        pg = inner
    return pg
