"""Import a table as ``torchloom trace import csv`` does, and print time and memory.

It imports nothing else of the benchmarks, which would count for its memory.
"""

import contextlib
import json
import re
import sys
import tempfile
import time
from pathlib import Path

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
    took = {"peak_rss_bytes": _peak_rss_bytes(), "seconds": time.perf_counter() - started}
    print(json.dumps(took))


def _peak_rss_bytes() -> int:
    """Return the peak of this program alone, and not of the one that it was forked from."""
    (kib,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return 1024 * int(kib)


if __name__ == "__main__":
    main()
