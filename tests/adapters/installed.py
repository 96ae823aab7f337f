"""Skip a framework's tests where it is missing, without the seconds that its import takes."""

from importlib.util import find_spec

import pytest


def needs(package):
    return pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed")
