"""One pass of retention as a process of lowest priority; the Weaver starts it.

``python -m torchloom_core.live.trajectory.retention_pass ROOT RULES`` prints a JSON list: steps,
bytes before and after, and what the trajectory still lacks.
"""

import logging
import os
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

from torchloom_core.config.trajectory import Trajectory
from torchloom_core.floor.errors import TorchloomError
from torchloom_core.live.trajectory.retention import prune

_LOWEST = 19


def main() -> int:
    """Run the pass; return the exit status."""
    root, rules = sys.argv[1:]
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    os.nice(_LOWEST)
    with suppress(OSError, AttributeError, psutil.Error):
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
    try:
        done = prune(Path(root), msgspec.json.decode(rules, type=Trajectory))
    except TorchloomError as error:
        logging.warning("%s", error)  # noqa: LOG015 - this is the whole program
        return 1
    sys.stdout.write(msgspec.json.encode(tuple(done)).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
