"""What the adapters of training frameworks share: their ranks save, pause and leave together.

A framework's folder has an adapter, a subclass of :class:`FrameworkAdapter`, and what a user adds
to a script: a callback, a hook, a trainer. Its ``__init__`` calls :func:`require` first.
"""

import contextlib
import os
import re
from collections.abc import Callable
from datetime import timedelta
from importlib import metadata
from typing import Any, Unpack

import torch.distributed as dist

from torchloom_threadlet.adapter import Adapter
from torchloom_threadlet.adapters.torchrun.adapter import TorchrunAdapter
from torchloom_threadlet.attachment import attach_once
from torchloom_threadlet.checkpoint.saving_ranks import SavingRanks
from torchloom_threadlet.cleaning import error_line, whole
from torchloom_threadlet.identity import PlacementArguments
from torchloom_threadlet.loom import Loom
from torchloom_threadlet.trainer.changes import Unchanged
from torchloom_threadlet.training.gradients import CLIP_NORM_DOC

__all__ = ["FrameworkAdapter", "attach_framework", "require"]

_TIMEOUT = timedelta(minutes=30)
"""Of a process that votes alone, and so waits for no other."""


def require(module: str, at_least: str, *distributions: str) -> None:
    """Refuse to import an adapter whose framework is not installed, or too old.

    Parameters
    ----------
    module : str
        The adapter's own name, which is its extra's too, as ``lightning``.
    at_least : str
        The oldest version that is supported, as ``2.5``.
    *distributions : str
        The names under which the framework is published; one has to be installed.

    Raises
    ------
    ImportError
        In one line that says what to install.
    """
    install = f"pip install 'torchloom[{module}]'"
    for distribution in distributions:
        try:
            version = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
        if _numbers(version) < _numbers(at_least):
            need = f"need {distribution} >= {at_least}, was {version}"
            raise ImportError(f"torchloom_threadlet.adapters.{module}: {need}: {install}")
        return
    need = f"need {distributions[0]} >= {at_least}, which is not installed"
    raise ImportError(f"torchloom_threadlet.adapters.{module}: {need}: {install}")


def _numbers(version: str) -> tuple[int, ...]:
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, leading[0].split("."))) if leading else ()


class FrameworkAdapter(TorchrunAdapter):
    """Ranks that stay the same from start to end, and that a framework steps and saves together.

    A checkpoint, a pause and a drain go through the vote: on one rank alone each would leave the
    others waiting in a collective.
    """

    _ranks: SavingRanks | None = None

    def bind(self, loom: Any, worker: Any) -> None:
        """Save on all ranks at one step, or on none."""
        super().bind(loom, worker)
        worker.saves_together, worker.meet = True, self._meet

    def _begin_votes(self, process_group: Any) -> None:
        """Vote; a process that trains alone, without torch.distributed, has the only ballot."""
        is_alone = os.environ.get("WORLD_SIZE", "1") == "1"
        if is_alone and dist.is_available() and not dist.is_initialized():
            self._vote_alone()
        else:
            super()._begin_votes(process_group)
            if self._ballots is not None:
                self._ranks = SavingRanks(process_group)
                self.worker.leaves_together = self._ranks.count > 1

    def _meet(self, name: str) -> None:
        if self._ranks is not None:
            self._ranks.meet(name)

    def together(self, save: Callable[[], object], discard: Callable[[], object]) -> None:
        """Save on all ranks; if one of them cannot, all ``discard`` and raise.

        Otherwise one rank would leave after a drain, and the others would wait for it.

        Parameters
        ----------
        save : callable
            Does not leave other ranks waiting if it raises.
        discard : callable
            Removes what was written; may raise.
        """
        error: Exception | None = None
        try:
            save()
        except Exception as caught:  # noqa: BLE001 - the framework's, or the disk's
            error = caught
        mine = error_line(error) if error is not None else ""
        texts = [mine] if self._ranks is None else self._ranks.gather(mine)
        failed = [f"rank {rank}: {text}" for rank, text in enumerate(texts) if text]
        if failed:
            with contextlib.suppress(Exception):
                discard()
        if error is not None:
            raise error
        if failed:
            raise OSError(f"no checkpoint: {failed[0]}")

    def fail(self, error: BaseException) -> None:
        """Report that training has ended by an error, although the process continues."""
        if self.loom.is_over:
            return
        self.close()
        self.loom._on_exception(error)
        self.loom._close()
        self.worker.end_incarnation()

    def look_first(self, path: str, load: Callable[[], Any]) -> Any:
        """Return a checkpoint's content before a rewind changes anything; on all ranks or on none.

        Raises
        ------
        Unchanged
            On all ranks, if it cannot be loaded on one of them.
        """
        found: list[Any] = []
        try:
            self.together(lambda: found.append(load()), lambda: None)
        except Exception as error:
            raise Unchanged(f"{path}: {error_line(error)}") from error
        return found[0]

    def _vote_alone(self) -> None:
        if not self.loom.inert:
            store = dist.HashStore()  # type: ignore[attr-defined]
            self.vote_within(dist.ProcessGroupGloo(store, 0, 1, _TIMEOUT))

    def save(self) -> dict[str, Any]:
        """Return the step that is over, also during a vote, and the run-fenced knobs."""
        step = self.worker.step if self._number is None else self._number
        return super().save() | {"step": whole(step)}

    def note_norm(self, norm: Any) -> None:
        """Report the norm that the framework has computed as it clips: spares a second one."""
        if self._optimizers is not None:
            self._optimizers.know_norm(norm)

    def register_clipping(
        self, get: Callable[[], float | None], set: Callable[[float], object]
    ) -> None:
        """Register the framework's own clipping as ``clip_norm``, in place of torchLoom's.

        ``get()`` returns the largest global norm of the gradients, None or 0 if it does not clip;
        ``set`` is called with 0 to end the clipping.
        """
        self.loom.knob(
            "clip_norm", lambda: float(get() or 0.0), set, low=0.0, fence="run", doc=CLIP_NORM_DOC
        )

    def register_count(
        self, name: str, get: Callable[[], int], set: Callable[[int], object], doc: str
    ) -> None:
        """Register a run-fenced whole number of at least 1, such as a batch size."""
        self.loom.knob(name, get, set, kind="int", low=1, fence="run", doc=doc)


def attach_framework(adapter: Adapter, **placement: Unpack[PlacementArguments]) -> Loom:
    """Attach this rank; without a rank of ours, torch.distributed's is taken.

    Raises
    ------
    ConfigError
        If this process is attached already, with another adapter or other arguments.
    """
    placement.setdefault("standby", False)
    if placement.get("rank") is None and dist.is_available() and dist.is_initialized():
        placement["rank"] = dist.get_rank()
    return attach_once(adapter, None, placement)
