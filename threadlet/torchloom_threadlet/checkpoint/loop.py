"""The training loop, as its checkpointer sees it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torchloom_core.wire.checkpoint_tiers import TIERS
from torchloom_threadlet.checkpoint.batches import Position, batches
from torchloom_threadlet.checkpoint.torchft_state import is_manager
from torchloom_threadlet.trainer.first_batch import marked

UPLOAD_KNOB = "upload_bytes_per_s"
SAVING_KNOBS = frozenset({UPLOAD_KNOB, *(tier.knob for tier in TIERS.values())})

_POSITION = "position"


class TrainingLoop:
    """A loom and its script's loop.

    Attributes
    ----------
    position : Position
        Where the loop is in its data.
    at_end : callable
        Called when all steps of :meth:`batches` are done.
    """

    def __init__(self, loom: Any, parts: tuple[Any, ...]) -> None:
        self.position = Position()
        self.at_end: Callable[[], None] = lambda: None
        self._loom, self._parts = loom, parts
        self._worker = loom.adapter.worker
        self._iterates = self._can_rewind = False
        self._rewind: Callable[[], None] | None = None

    @property
    def run(self) -> str:
        """The name of the run, "" without a Weaver."""
        return str(self._worker.run)

    @property
    def step(self) -> int:
        """The last step that is done."""
        return int(self._worker.whole_step)

    @step.setter
    def step(self, step: int) -> None:
        self._worker.step = step

    def note(self, kind: str, fields: dict[str, Any]) -> None:
        """Tell the Weaver."""
        self._worker.note(kind, fields)

    def leave(self) -> None:
        """End the loop after this step."""
        self._worker.leave()

    def saves(self) -> bool:
        """Return whether these ranks save now: of replica groups with the same state one does."""
        return bool(self._loom.adapter.saves())

    def batches(self, loader: Any, steps: int) -> Iterator[tuple[int, Any]]:
        """Yield each step that is left with its batch; a rewind leads back."""
        self._iterates = True
        self._offer_rewind()
        has_state = any(loader is part for part in self._parts)
        left = batches(loader, steps, self.position, lambda: self.step, has_state=has_state)
        yield from marked(left, self._worker.starting)
        self.at_end()

    def may_rewind(self, rewind: Callable[[], None]) -> None:
        """Note that there is a checkpoint, to which ``rewind()`` goes back."""
        self._rewind = rewind
        self._offer_rewind()

    def _offer_rewind(self) -> None:
        """Offer it once, if the loop follows: torchft's step only increases."""
        rewind = self._rewind
        if rewind is None or not self._iterates or self._can_rewind:
            return
        self._can_rewind = True
        if any(map(is_manager, self._parts)):
            return

        def go_back(skip: int) -> None:
            rewind()
            self.position.skip = skip

        self._loom.on_rewind(go_back)


class LoopState:
    """The loop's part of a rank's state: its step, the knobs in force, its place in the data."""

    def __init__(self, loom: Any, position: Position) -> None:
        self._loom, self._position = loom, position

    def state_dict(self) -> dict[str, Any]:
        """Return the step, the knobs that all ranks share, and the position."""
        return {**self._loom.state_dict(), _POSITION: self._position.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the knobs that are registered by now, and the position.

        How often to save is for this start to say, not for the one that saved.
        """
        others = {key: of for key, of in state.items() if key != _POSITION}
        knobs = {name: of for name, of in state["knobs"].items() if name not in SAVING_KNOBS}
        self._loom.load_state_dict(others | {"knobs": knobs})
        if _POSITION in state:
            self._position.load_state_dict(state[_POSITION])
