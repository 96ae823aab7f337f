"""The run-fenced knobs of a process group's allreduce."""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from torchloom_threadlet.compression.codecs import LEAST_BYTES
from torchloom_threadlet.compression.modes import MODES, refusal
from torchloom_threadlet.compression.process_group import CompressedProcessGroup

_logger = logging.getLogger(__name__)


def allreduce_knobs(pg: CompressedProcessGroup) -> list[dict[str, Any]]:
    """Return the arguments that register each knob: ``loom.knob(**one)``.

    Modes that the process group cannot do are no choices; one warning says why.
    """
    if missing := [mode for mode in MODES if mode not in pg.modes]:
        _logger.warning("%s", refusal(missing[0], pg))
    return [
        {
            **_attribute(pg, "compression", "mode"),
            "kind": "choice",
            "choices": pg.modes,
            "doc": "how gradients are compressed for the allreduce",
        },
        {
            **_attribute(pg, "ring_order", "ring_order"),
            "kind": "order",
            "doc": "order of the groups in the ring; groups that are not named come last",
        },
        {
            **_attribute(pg, "concurrent_allreduces", "concurrent_allreduces"),
            "kind": "int",
            "low": 1,
            "high": 16,
            "doc": "pieces of a reduction that are in flight at once",
        },
        {
            **_attribute(pg, "bucket_bytes", "bucket_bytes"),
            "kind": "int",
            "low": 0,
            "check": _check_bucket,
            "unit": "bytes",
            "doc": "largest size of a piece; 0: as many pieces as are in flight at once",
        },
    ]


def _check_bucket(values: Mapping[str, Any]) -> None:
    most = values["bucket_bytes"]
    if 0 < most < LEAST_BYTES:
        raise ValueError(f"need 0, or at least {LEAST_BYTES}, was {most}")


def _attribute(pg: CompressedProcessGroup, name: str, attribute: str) -> dict[str, Any]:
    get, set_ = partial(getattr, pg, attribute), partial(setattr, pg, attribute)
    return {"name": name, "get": get, "set": set_, "fence": "run"}
