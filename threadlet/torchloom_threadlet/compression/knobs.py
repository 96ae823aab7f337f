"""What of a process group's allreduce can be changed while it runs, on all ranks at one step."""

from functools import partial
from typing import Any

from torchloom_threadlet.compression.modes import MODES
from torchloom_threadlet.compression.process_group import CompressedProcessGroup


def allreduce_knobs(pg: CompressedProcessGroup) -> list[dict[str, Any]]:
    """Return what registers each as a knob: ``loom.knob(**one)``."""
    return [
        {
            **_attribute(pg, "compression", "mode"),
            "kind": "choice",
            "choices": MODES,
            "doc": "how gradients are compressed for the allreduce",
        },
        {
            **_attribute(pg, "ring_order", "ring_order"),
            "kind": "order",
            "doc": "in which order the groups stand in the ring; the others after those named",
        },
    ]


def _attribute(pg: CompressedProcessGroup, name: str, attribute: str) -> dict[str, Any]:
    get, set_ = partial(getattr, pg, attribute), partial(setattr, pg, attribute)
    return {"name": name, "get": get, "set": set_, "fence": "run"}
