"""torchtitan: two arguments of its command, and no change of source.

``--module torchloom_threadlet.adapters.torchtitan --config llama3.llama3_debugmodel`` takes
torchtitan's own configuration ``--module llama3 --config llama3_debugmodel``, and attaches its
trainer.
"""

from collections.abc import Callable
from typing import Any

from torchloom_threadlet.adapters.framework import require

require("torchtitan", "0.3", "torchtitan")

from torchloom_threadlet.adapters.torchtitan.trainer import attached, config_of  # noqa: E402

__all__ = ["attached"]


def __getattr__(name: str) -> Callable[[], Any]:
    """Return the function for ``--config MODULE.FUNCTION``, as torchtitan looks it up."""
    if "." not in name:
        raise AttributeError(name)
    return lambda: attached(config_of(name))
