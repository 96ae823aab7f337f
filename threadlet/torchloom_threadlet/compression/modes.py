"""The modes of compression by name."""

from collections.abc import Iterable

from torch import Tensor

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
