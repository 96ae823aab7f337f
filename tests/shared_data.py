"""Where the recorded data lie that some tests and experiments read."""

import os
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("TORCHLOOM_DATA", Path(__file__).parents[2] / "shared" / "data"))


def shared_data(name: str) -> Path:
    """Return the folder of a data set, or skip the test where it is absent."""
    folder = ROOT / name
    if not folder.is_dir():
        pytest.skip(f"the recorded data {name} is not at {ROOT}; TORCHLOOM_DATA names its folder")
    return folder
