"""A disk of a few megabytes of its own, to be filled."""

import contextlib
import os
import subprocess

import pytest

_PIECE_BYTES = 1 << 12


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


def fill(path, leave_bytes=0):
    """Write a file until so many bytes are free, or not a byte more has room; return it."""
    disk = os.statvfs(path.parent)
    with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
        for _ in range(0, disk.f_bavail * disk.f_frsize - leave_bytes, _PIECE_BYTES):
            file.write(bytes(_PIECE_BYTES))
        while not leave_bytes:
            file.write(bytes(1))
    return path
