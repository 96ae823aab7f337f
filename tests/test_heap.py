"""What a process frees goes back to the system."""

import subprocess
import sys

import pytest

_GROWN_MB = """
import numpy as np
from torchloom_core.floor.heap import return_large_blocks
return_large_blocks()

def resident_mb():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6

before = resident_mb()
kept = []
for _ in range(40):
    table = np.ones(2_000_000)
    kept.append(np.ones(20_000))
    del table
print(resident_mb() - before - sum(one.nbytes for one in kept) / 1e6)
"""


@pytest.mark.integration
def test_small_arrays_between_large_ones_do_not_hold_the_memory_of_those():
    done = subprocess.run([sys.executable, "-c", _GROWN_MB], capture_output=True, check=True)
    assert float(done.stdout) < 8.0
