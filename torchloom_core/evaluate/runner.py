"""Play the runs of a study that are not on disk yet, and say how many are over."""

from collections.abc import Callable, Sequence
from typing import Generic

import msgspec

from torchloom_core.errors import StateError
from torchloom_core.evaluate.parallel import Errand, Workforce
from torchloom_core.evaluate.run_cache import Run, RunCache

Progress = Callable[[int, int], None]
"""Told how many runs are over, and how many there will be."""


class Runner(Generic[Run]):
    """Looks every run up in the store first, and puts it there once it is over.

    Parameters
    ----------
    total : int
        How many runs there will be.
    """

    def __init__(
        self, store: RunCache[Run], workforce: Workforce, total: int, progress: Progress
    ) -> None:
        self._store, self._workforce, self._progress = store, workforce, progress
        self._over, self._total = 0, total

    def play(self, errands: Sequence[Errand[Run]]) -> dict[tuple[str, int], Run]:
        """Return every run by the name of its arm and its seed.

        Raises
        ------
        StateError
            If the trace or a model was replaced meanwhile: nobody knows of which a run is.
        """
        key = {(errand.arm_name, errand.seed): errand.key for errand in errands}
        found: dict[str, Run] = {}
        missing: dict[str, Errand[Run]] = {}
        for errand in errands:
            name = key[errand.arm_name, errand.seed]
            run = self._store.find(name, errand.arm_name)
            if run is None:
                missing.setdefault(name, errand)
            else:
                found[name] = run
        self._done(len(errands) - len(missing))
        for errand, run in self._workforce.play(list(missing.values())):
            name = key[errand.arm_name, errand.seed]
            if errand.key != name:
                raise StateError(
                    f"{errand.arm_name}: need a trace and models that stay as they are while runs "
                    f"are played, was one that was replaced"
                )
            self._store.keep(name, run)
            found[name] = run
            self._done(1)
        return {
            (arm, seed): msgspec.structs.replace(found[name], arm=arm)
            for (arm, seed), name in key.items()
        }

    def _done(self, runs: int) -> None:
        self._over += runs
        self._progress(self._over, max(self._total, self._over))
