"""Play the runs of a study, and cache them on disk: an interrupted study repeats none."""

import hashlib
import importlib.metadata
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

import torchloom_core
from torchloom_core.floor.errors import StateError
from torchloom_core.floor.files import write_whole
from torchloom_core.interface.api import PROJECT
from torchloom_core.lab.activation.discovery import installed
from torchloom_core.lab.evaluate.parallel import StudyTask, Workforce

Run = TypeVar("Run", bound=msgspec.Struct)

Progress = Callable[[int, int], None]
"""Called with the number of finished runs and the total."""

_ALWAYS = ("numpy", "scikit-learn")
"""Distributions that affect forecasts, whatever a plugin declares."""


class Runner(Generic[Run]):
    """Plays the runs of a study that are not cached yet, and saves them.

    Each run of type ``kind`` has a file in ``folder``, under a hash of everything that it depends
    on. ``total`` is the expected number of runs, for the progress.
    """

    def __init__(
        self, folder: Path, kind: type[Run], workforce: Workforce, progress: Progress
    ) -> None:
        self._folder, self._kind = folder, kind
        self._workforce, self._progress = workforce, progress
        self._over = self.total = 0

    def find(self, key: str, arm: str) -> Run | None:
        """Return the run under the name of this arm, or None if it is missing or incomplete."""
        try:
            found = msgspec.json.decode(self._path(key).read_bytes(), type=self._kind)
        except (OSError, msgspec.MsgspecError):
            return None
        return msgspec.structs.replace(found, arm=arm)

    def save(self, key: str, run: Run) -> None:
        """Write a run atomically."""
        write_whole(self._path(key), msgspec.json.encode(run))

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"

    def play(self, study_tasks: Sequence[StudyTask[Run]]) -> dict[str, list[Run]]:
        """Return the runs of each arm in order; StateError if an input was replaced meanwhile."""
        key = {(study_task.arm.name, study_task.seed): study_task.key for study_task in study_tasks}
        found: dict[str, Run] = {}
        missing: dict[str, StudyTask[Run]] = {}
        for study_task in study_tasks:
            name = key[study_task.arm.name, study_task.seed]
            run = self.find(name, study_task.arm.name)
            if run is None:
                missing.setdefault(name, study_task)
            else:
                found[name] = run
        self._done(len(study_tasks) - len(missing))
        for study_task, run in self._workforce.play(list(missing.values())):
            name = key[study_task.arm.name, study_task.seed]
            if study_task.key != name:
                raise StateError(
                    f"{study_task.arm.name}: need a trace and models that do not change "
                    f"during the backtest, one was replaced"
                )
            self.save(name, run)
            found[name] = run
            self._done(1)
        runs: dict[str, list[Run]] = {}
        for (arm, _), name in key.items():
            runs.setdefault(arm, []).append(msgspec.structs.replace(found[name], arm=arm))
        return runs

    def _done(self, runs: int) -> None:
        self._over += runs
        self._progress(self._over, max(self.total, self._over))


def key_of(parts: list[Any], predictors: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the hash of a run's inputs, the models of its predictors, and the code."""
    models = [Path(table["model"]) for _, table in sorted(predictors.items()) if "model" in table]
    digests = [_digest_of(p for p in sorted(m.rglob("*")) if p.is_file()) for m in models]
    everything = [*parts, digests, code_digest()]
    return hashlib.sha256(msgspec.json.encode(everything, order="sorted")).hexdigest()[:32]


@lru_cache(maxsize=1)
def code_digest() -> str:
    """Return the hash of torchLoom's code and that of every plugin, computed once per process.

    A plugin contributes all modules of its top-level package and the versions of the
    distributions that it requires.
    """
    sources = {*Path(torchloom_core.__file__).parent.rglob("*.py")}
    distributions = {PROJECT}
    for info in installed():
        if info.cls is not None:
            sources |= sources_of(info.cls)
            distributions.add(info.package)
    return _digest_of(sorted(sources), str(versions_of(distributions)))


def sources_of(cls: type[Any]) -> set[Path]:
    """Return the source files of the class's top-level package, or its one module."""
    top = sys.modules.get(cls.__module__.partition(".")[0])
    folders = [Path(place) for place in getattr(top, "__path__", ())]
    return {Path(inspect.getfile(cls)), *(one for at in folders for one in at.rglob("*.py"))}


def versions_of(distributions: Iterable[str]) -> dict[str, str]:
    """Return the versions of distributions and of their requirements, extras included."""
    names = {*_ALWAYS}
    for name in distributions:
        names.add(name)
        try:
            required = importlib.metadata.requires(name) or ()
        except importlib.metadata.PackageNotFoundError:
            continue
        names.update(re.split(r"[^\w.-]", one, maxsplit=1)[0] for one in required)
    return {name: _version(name) for name in sorted(names)}


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _digest_of(paths: Iterable[Path], more: str = "") -> str:
    digest = hashlib.sha256(more.encode())
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
