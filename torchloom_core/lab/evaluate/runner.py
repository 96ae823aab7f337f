"""Play the runs of a study that are not cached yet, and report the progress."""

from collections.abc import Callable, Sequence
from typing import Generic

import msgspec

from torchloom_core.floor.errors import StateError
from torchloom_core.lab.evaluate.parallel import StudyTask, Workforce
from torchloom_core.lab.evaluate.run_cache import Run, RunCache

Progress = Callable[[int, int], None]
"""Called with the number of finished runs and the total."""


class Runner(Generic[Run]):
    """Looks up every run in the cache, and plays and saves the missing ones."""

    def __init__(
        self, store: RunCache[Run], workforce: Workforce, total: int, progress: Progress
    ) -> None:
        self._store, self._workforce, self._progress = store, workforce, progress
        self._over, self._total = 0, total

    def play(self, study_tasks: Sequence[StudyTask[Run]]) -> dict[tuple[str, int], Run]:
        """Return every run by the name of its arm and its seed.

        StateError if the trace or a model was replaced meanwhile.
        """
        key = {(study_task.arm_name, study_task.seed): study_task.key for study_task in study_tasks}
        found: dict[str, Run] = {}
        missing: dict[str, StudyTask[Run]] = {}
        for study_task in study_tasks:
            name = key[study_task.arm_name, study_task.seed]
            run = self._store.find(name, study_task.arm_name)
            if run is None:
                missing.setdefault(name, study_task)
            else:
                found[name] = run
        self._done(len(study_tasks) - len(missing))
        for study_task, run in self._workforce.play(list(missing.values())):
            name = key[study_task.arm_name, study_task.seed]
            if study_task.key != name:
                raise StateError(
                    f"{study_task.arm_name}: need a trace and models that do not change "
                    f"during the backtest, one was replaced"
                )
            self._store.save(name, run)
            found[name] = run
            self._done(1)
        return {
            (arm, seed): msgspec.structs.replace(found[name], arm=arm)
            for (arm, seed), name in key.items()
        }

    def _done(self, runs: int) -> None:
        self._over += runs
        self._progress(self._over, max(self._total, self._over))
