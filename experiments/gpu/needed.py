"""What ``run.py`` needs, found out before it measures."""

import os
import shutil
import sysconfig
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

INSTALL = 'pip install -c constraints.txt -e ".[gpu-tests]"'
INSTALL_COMPILER = "apt-get install gcc python3-dev"

_MODULES = {
    "torch": "torch",
    "torchft": "torchft-nightly",
    "pynvml": "nvidia-ml-py",
    "matplotlib": "matplotlib",
    "rich": "rich",
    "numpy": "numpy",
    "psutil": "psutil",
    "msgspec": "msgspec",
    "nats": "nats-py",
    "nkeys": "nkeys",
    "pluggy": "pluggy",
    "xxhash": "xxhash",
}
"""What is imported, and the package that has it."""


def missing_packages() -> list[str]:
    """Return the packages that are not installed, and ``nats-server`` if there is none to run."""
    missing = [package for module, package in _MODULES.items() if find_spec(module) is None]
    try:
        distribution("torchloom")  # its collectors are found by entry points
    except PackageNotFoundError:
        missing.append("torchloom")
    if missing:
        return missing
    from torchloom_core.floor.errors import BrokerError
    from torchloom_core.live.transport.broker.binary import find_server

    try:
        find_server()
    except BrokerError as error:
        return [f"nats-server ({error})"]
    return []


def missing_compiler() -> list[str]:
    """Return what Triton needs to compile with, as it looks for it, and is not there."""
    missing = []
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        missing.append("a C compiler")
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        missing.append("Python's C headers")
    return missing
