"""A disk of a few megabytes of its own, to be filled."""

import contextlib
import subprocess

import pytest

_PIECE_BYTES = 1 << 16


@contextlib.contextmanager
def small_disk(folder, size_mib):
    """Mount one at ``folder``; skip the test where this user may not."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "none", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(path):
    """Write a file until not a byte more has room; return it."""
    for piece in (_PIECE_BYTES, 1):
        with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(piece))
    return path
