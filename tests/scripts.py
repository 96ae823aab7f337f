"""Scripts of ``experiments``, each run in a process of its own."""

import subprocess
import sys
from pathlib import Path

EXPERIMENTS = Path(__file__).parents[1] / "experiments"


def run_script(script, *words, status=0):
    """Run a script, check its status, and return what it printed, errors last."""
    done = subprocess.run(
        [sys.executable, EXPERIMENTS / script, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout + done.stderr
