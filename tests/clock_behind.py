"""``torchloom``, on a host whose wall clock is behind: ``clock_behind.py SECONDS ARGUMENTS``."""

import sys
import time

BEHIND_S = int(sys.argv.pop(1))
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() - BEHIND_S
time.time_ns = lambda: _time_ns() - BEHIND_S * 10**9

from torchloom_core.cli import main  # noqa: E402 - once the clock is set

main()
