"""The shapes of a micro-batch, which a worker learns from its script or from the first stage."""

from torchloom_threadlet.pipeline.boundaries import Values, boundaries, described
from torchloom_threadlet.pipeline.generation import Batch
from torchloom_threadlet.pipeline.group import Group
from torchloom_threadlet.pipeline.layers import Program
from torchloom_threadlet.pipeline.user_code import of_the_user

_KEY = "inputs"


class Inputs:
    """What goes into each layer, once it is known.

    Attributes
    ----------
    shapes : tuple of tuple of Tensor, (layers + 1,)
        From :func:`boundaries`.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._described = ""
        self.shapes: tuple[Values, ...] = ()

    def look(self, batch: Batch) -> None:
        """Learn them from the script's own batch."""
        with of_the_user():
            inputs, _ = batch(0)
            self._learn(described(inputs, self._program.micro_batches, "batch"))

    def exchange(self, group: Group, batch: Batch, *, is_first: bool) -> None:
        """Learn them from the worker with the first stage, at the beginning of a generation."""
        if is_first:
            if not self._described:
                self.look(batch)
            group.store.set(_KEY, self._described)
        elif not self._described:
            self._learn(group.get(_KEY).decode())

    def _learn(self, inputs: str) -> None:
        if inputs != self._described:
            with of_the_user():
                self.shapes = boundaries(self._program, inputs)
            self._described = inputs
