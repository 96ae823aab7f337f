"""Write a folder, a trace bundle or a model, whole or not at all."""

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
    """A folder beside ``path`` that takes its place once it is whole, or is thrown away.

    What a writer left that was killed, the next one of the same path throws away: a lock, which
    ends with its process, says whether a draft's writer lives.

    Parameters
    ----------
    path : Path
        What is written, not yet there or to be replaced.

    Attributes
    ----------
    folder : Path
        Where it is written meanwhile, empty.

    Raises
    ------
    OSError
        If no folder can be made there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        clear_abandoned(path)
        self._root, self._lock = _locked_root(path)
        self.folder = self._root / path.name
        self.folder.mkdir()

    def put_in_place(self, *, replace: bool) -> None:
        """Move it to its path; see :func:`put_in_place`."""
        put_in_place(self.folder, self._path, replace=replace)

    def discard(self) -> None:
        """Throw away what is left of it: all, unless it is in its place."""
        shutil.rmtree(self._root, ignore_errors=True)
        os.close(self._lock)


def put_in_place(draft: Path, path: Path, *, replace: bool) -> None:
    """Move a finished folder to ``path``; an old one goes only once the new one is whole.

    Parameters
    ----------
    replace : bool
        Whether there may be an old one.

    Raises
    ------
    OSError
        If it cannot be moved; then, and after an interrupt, ``path`` is as it was.
    """
    if not (replace and path.exists()):
        draft.rename(path)  # of a folder that is there, with something in it, the system says no
        return
    replaced = draft.with_name(_REPLACED)
    try:
        path.rename(replaced)
        draft.rename(path)
    except BaseException:  # an interrupt, too, would leave neither
        if replaced.exists() and not path.exists():
            replaced.rename(path)
        raise


def clear_abandoned(path: Path) -> None:
    """Throw away the drafts of ``path`` whose writers are dead.

    If one was killed as it had just put an old folder aside, that one is put back.
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
        _log.warning("%s: put back as it was: who was replacing it was killed", path)
    shutil.rmtree(root, ignore_errors=True)
    _log.warning("%s: removed what was left of a write that was killed", path)


def _locked_root(path: Path) -> tuple[Path, int]:
    """Make a folder for a draft, and hold its lock, where the file system has locks."""
    while True:
        # mkdtemp's folder is for its owner only; what takes the place of path lies inside.
        root = Path(tempfile.mkdtemp(prefix=_prefix(path), dir=path.parent))
        try:
            lock = os.open(root, os.O_RDONLY)
        except FileNotFoundError:  # taken for a dead one's before it could be locked
            continue
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        if root.exists():
            return root, lock
        os.close(lock)


def _prefix(path: Path) -> str:
    return f".{path.name}.draft-"
