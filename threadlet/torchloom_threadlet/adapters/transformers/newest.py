"""Find the checkpoint from which a restarted Trainer resumes, past one that was cut off."""

import json
import os
import re
import zipfile
from pathlib import Path

from torchloom_threadlet.adapters.transformers.place import saved_state

_NAME = re.compile(r"checkpoint-(\d+)")


def newest_checkpoint(folder: str | os.PathLike[str]) -> str | None:
    """Return the newest complete checkpoint of a Trainer, None if there is none.

    For ``trainer.train(resume_from_checkpoint=newest_checkpoint(args.output_dir))``. With True
    instead, a Trainer fails in the first start, and after a kill during a save.

    Parameters
    ----------
    folder : str or PathLike
        The Trainer's ``output_dir``.
    """
    place = Path(folder)
    paths = list(place.iterdir()) if place.is_dir() else []
    found = [(int(name[1]), path) for path in paths if (name := _NAME.fullmatch(path.name))]
    complete = (str(path) for _, path in sorted(found, reverse=True) if _is_complete(path))
    return next(complete, None)


def _is_complete(checkpoint: Path) -> bool:
    """Return whether rank 0 has written its last file, and each rank its random states."""
    try:
        state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(state, dict):
        return False
    ranks = saved_state(state.get("stateful_callbacks")).get("ranks", 1)
    names = {path.name for path in checkpoint.glob("rng_state*.pth")}
    if not isinstance(ranks, int) or ranks > 1:
        if not isinstance(ranks, int) or ranks > len(names):
            return False
        names |= {f"rng_state_{rank}.pth" for rank in range(ranks)}
    # A zip file's directory is at its end.
    return all(zipfile.is_zipfile(checkpoint / name) for name in names)
