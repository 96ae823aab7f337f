"""Finished runs on disk, so that an interrupted study loses none and repeats none."""

import hashlib
import inspect
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

import torchloom_core
from torchloom_core.evaluate.goodput.arms import Arm
from torchloom_core.evaluate.goodput.episode import opened
from torchloom_core.evaluate.goodput.run import Setting, installed
from torchloom_core.evaluate.results import RunResult
from torchloom_core.files import write_whole


class RunCache:
    """One file a run, under a key that names everything which the run depends on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, key: str, arm: str) -> RunResult | None:
        """Return the run as one of this arm, or None if it is not there or not whole."""
        try:
            found = msgspec.json.decode(self._path(key).read_bytes(), type=RunResult)
        except (OSError, msgspec.MsgspecError):
            return None
        return msgspec.structs.replace(found, arm=arm)

    def keep(self, key: str, run: RunResult) -> None:
        """Write a run, wholly or not at all."""
        write_whole(self._path(key), msgspec.json.encode(run))

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"


def key_of(setting: Setting, arm: Arm, seed: int) -> str:
    """Return the hash of trace, job, costs, rails, arm, seed, models and code."""
    config = setting.config
    parts = [
        opened(Path(setting.trace))[0].digest(),
        [config.run, config.weaver, config.costs, config.arbiter, config.evaluate],
        [setting.unknown, setting.from_ns, setting.horizon_s],
        msgspec.structs.replace(arm, name="", what="", kind="candidate", needs_forecast=False),
        seed,
        [_folder_digest(Path(table["model"])) for table in _models(arm)],
        code_digest(),
    ]
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:32]


def _models(arm: Arm) -> Iterable[dict[str, Any]]:
    return (table for _, table in sorted(arm.predictors.items()) if "model" in table)


def _folder_digest(folder: Path) -> str:
    return _digest_of(path for path in sorted(folder.rglob("*")) if path.is_file())


@lru_cache(maxsize=1)
def code_digest() -> str:
    """Return the hash of our own code and that of every installed plugin."""
    core = sorted(Path(torchloom_core.__file__).parent.rglob("*.py"))
    plugins = {inspect.getfile(info.cls) for info in installed() if info.cls is not None}
    return _digest_of([*core, *map(Path, sorted(plugins))])


def _digest_of(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
