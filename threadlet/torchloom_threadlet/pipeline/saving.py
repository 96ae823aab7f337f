"""When a worker of a pipeline saves its layers, and what it loads."""

from collections.abc import Mapping

from torchloom_core.floor.errors import PipelineError
from torchloom_core.wire.assignment import Assignment
from torchloom_threadlet.layers.layer import Layer
from torchloom_threadlet.pipeline.adapter import PipelineAdapter
from torchloom_threadlet.pipeline.checkpoints import Moment, PipelineCheckpoints
from torchloom_threadlet.pipeline.group import Group

_KEY = "checkpoints"


class Saving:
    """The checkpoints of one worker, if it has any.

    A step that is to be saved is saved once in each generation that begins at it: otherwise the
    part of a worker that has ended meanwhile would be missing.
    """

    def __init__(
        self, checkpoints: PipelineCheckpoints | None, adapter: PipelineAdapter, worker: str
    ) -> None:
        self._checkpoints, self._adapter, self._worker = checkpoints, adapter, worker
        self._name = ""

    @property
    def step(self) -> int:
        """The step of the checkpoint with which a new run begins, -1 without one."""
        return self._checkpoints.step if self._checkpoints is not None else -1

    def begin(self, group: Group, *, is_first: bool) -> None:
        """Agree on the name of a generation's checkpoints; the first worker chooses it."""
        checkpoints = self._checkpoints
        if is_first:
            group.store.set(_KEY, checkpoints.new_name() if checkpoints is not None else "")
        if checkpoints is not None:
            self._name = group.get(_KEY).decode()

    def ask(self, step: int) -> None:
        """Have a step saved, on all workers."""
        self._adapter.save_step = step

    def is_asked(self, step: int) -> bool:
        """Return whether to save this step, the last committed one."""
        if self._checkpoints is None or step < 0:
            return False
        if self._checkpoints.is_due(step):
            self.ask(step)
        return self._adapter.save_step == step

    def save(self, step: int, assignment: Assignment, held: Mapping[int, Layer]) -> None:
        """Begin to save this worker's part of the last committed step."""
        if self._checkpoints is not None:
            moment = Moment(step, assignment, self._name)
            self._checkpoints.save(moment, self._worker, held, self._adapter.save())

    def load(self, step: int, missing: Mapping[int, Layer]) -> None:
        """Load new layers from the checkpoint with which a run begins.

        Raises
        ------
        PipelineError
            If the run is at another step.
        CheckpointError
            If a layer cannot be read.
        """
        if self._checkpoints is None or self._checkpoints.step != step:
            raise PipelineError(f"{self._worker}: need a copy of layers {sorted(missing)}")
        for layer in missing.values():
            self._checkpoints.load(layer)

    def wait(self) -> str:
        """Wait until this worker's part is stored; return why the last one is not, or ""."""
        if self._checkpoints is None:
            return ""
        self._checkpoints.wait()
        return self._checkpoints.problem
