"""Write a folder, such as a trace bundle or a model, completely or not at all."""

import fcntl
import glob
import logging
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

_log = logging.getLogger(__name__)

_REPLACED = "replaced"


class AtomicFolder:
    """A folder beside ``path`` that takes its place once it is complete, or is removed.

    The next writer of the same path removes the draft of a killed writer: a lock, which ends with
    its process, shows whether a draft's writer is running. ``folder`` is the empty draft, to be
    filled. Raises OSError if no folder can be created there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        clear_abandoned(path)
        self._root, self._lock = _locked_root(path)
        self.folder = self._root / path.name
        self.folder.mkdir()

    def put_in_place(self, *, replace: bool) -> None:
        """Move it to its path; if ``replace``, an existing folder is replaced.

        Raises OSError if it cannot be moved; then, and after an interrupt, the path is unchanged.
        """
        draft, path = self.folder, self._path
        if not (replace and path.exists()):
            draft.rename(path)  # the system refuses to replace a folder that is not empty
            return
        replaced = draft.with_name(_REPLACED)
        try:
            path.rename(replaced)
            draft.rename(path)
        except BaseException:  # also an interrupt must not leave the path without a folder
            if replaced.exists() and not path.exists():
                replaced.rename(path)
            raise

    def discard(self) -> None:
        """Remove what remains of the draft."""
        shutil.rmtree(self._root, ignore_errors=True)
        os.close(self._lock)


def clear_abandoned(path: Path) -> None:
    """Remove the drafts of ``path`` whose writers have ended.

    If a writer was killed after it had moved the old folder away, that folder is restored.
    """
    for root in path.parent.glob(glob.escape(_prefix(path)) + "*"):
        with suppress(OSError):
            lock = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _clear(root, path)
            finally:
                os.close(lock)


def _clear(root: Path, path: Path) -> None:
    replaced = root / _REPLACED
    if replaced.exists() and not path.exists():
        replaced.rename(path)
        _log.warning("%s: restored: the process that was replacing it was killed", path)
    shutil.rmtree(root, ignore_errors=True)
    _log.warning("%s: removed the draft of a killed process", path)


def _locked_root(path: Path) -> tuple[Path, int]:
    """Create a folder for a draft and lock it, if the file system has locks."""
    while True:
        # Only the owner can enter mkdtemp's folder; the draft inside has normal permissions.
        root = Path(tempfile.mkdtemp(prefix=_prefix(path), dir=path.parent))
        try:
            lock = os.open(root, os.O_RDONLY)
        except FileNotFoundError:  # removed as abandoned before it could be locked
            continue
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        if root.exists():
            return root, lock
        os.close(lock)


def _prefix(path: Path) -> str:
    return f".{path.name}.draft-"
