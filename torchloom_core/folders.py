"""Put a finished folder in its place: a trace bundle, a fitted model."""

from pathlib import Path


def put_in_place(draft: Path, path: Path) -> None:
    """Move a finished folder to ``path``; an old one goes only once the new one is whole.

    Raises
    ------
    OSError
        If it cannot be moved; then ``path`` is as it was.
    """
    if not path.exists():
        draft.rename(path)
        return
    replaced = draft.with_name("replaced")
    path.rename(replaced)
    try:
        draft.rename(path)
    except OSError:
        replaced.rename(path)
        raise
