"""Import a table as ``torchloom trace import csv`` does, and print time and memory.

It imports nothing of the benchmarks that would count for its memory.
"""

import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path

from peak_memory import peak_rss_bytes

from torchloom_core.cli.app import app
from torchloom_core.cli.installed_commands import add_installed


def main() -> None:
    """Import the events beside the mapping that is named, and print one line of JSON."""
    mapping = Path(sys.argv[1])
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="torchloom-bench-") as folder:
        paths = [mapping.with_name("events.csv"), Path(folder) / "t.tltrace", "--map", mapping]
        words = ["trace", "import", "csv", *map(str, paths)]
        add_installed(words)
        with contextlib.redirect_stdout(sys.stderr):
            app(words, result_action="return_value")
    took = {"peak_rss_bytes": peak_rss_bytes(), "seconds": time.perf_counter() - started}
    print(json.dumps(took))


if __name__ == "__main__":
    main()
