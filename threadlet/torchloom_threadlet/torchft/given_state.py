"""The size of the state that torchft's Manager gives to a healing peer."""

import logging
from typing import Any

from torch.utils._pytree import tree_leaves

_logger = logging.getLogger(__name__)


class GivenState:
    """The size of the state that ``manager`` gave last.

    Attributes
    ----------
    size_bytes : int
        Of its tensors on this rank; 0 before any state was given.
    """

    def __init__(self, manager: Any) -> None:
        self.size_bytes = 0
        transport = manager._checkpoint_transport
        send = transport.send_checkpoint

        def measured_send(*args: Any, **kwargs: Any) -> Any:
            try:
                self.size_bytes = tensor_bytes(kwargs["state_dict"])
            except Exception:
                _logger.exception("cannot measure the size of the given state")
            return send(*args, **kwargs)

        transport.send_checkpoint = measured_send


def tensor_bytes(state: Any) -> int:
    """Return the bytes of the tensors in ``state``, of DTensors the part on this rank."""
    leaves = (getattr(leaf, "_local_tensor", leaf) for leaf in tree_leaves(state))
    return sum(getattr(leaf, "nbytes", 0) for leaf in leaves)
