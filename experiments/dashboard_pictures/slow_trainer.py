"""The demo's trainer on a node that becomes slow: its steps take longer while a file is there."""

import os
import time
from pathlib import Path
from types import SimpleNamespace

from torchloom_threadlet import demo_trainer

FILE = "DASHBOARD_PICTURES_SLOW"
"""The variable that names the file."""

TIMES = 2.6


def sleep(seconds: float) -> None:
    """Work for ``seconds``, or ``TIMES`` as long on a slow node."""
    path = os.environ.get(FILE)
    time.sleep(seconds * (TIMES if path and Path(path).exists() else 1.0))


if __name__ == "__main__":
    demo_trainer.time = SimpleNamespace(sleep=sleep, time=time.time)  # type: ignore[attr-defined, assignment]
    demo_trainer.main()
