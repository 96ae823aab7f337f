"""Scikit-learn's digits, the data of the demos' trainers."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

_PIXEL_MAX = 16.0


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return scikit-learn's digits, ``(samples, 64)`` in 0 to 1, and their labels.

    Read from scikit-learn's file: importing ``load_digits`` takes about as long as importing torch.
    """
    package = find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
    path = Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    table = torch.from_numpy(np.loadtxt(path, delimiter=","))
    return table[:, :-1].float() / _PIXEL_MAX, table[:, -1].long()
