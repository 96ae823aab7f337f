import pytest

from tests.pipeline.fleet import Fleet
from tests.threadlet.conftest import *  # noqa: F403 - a broker, and the Weaver's part


@pytest.fixture
def fleet(tmp_path):
    made = []

    def make(*args, **kwargs):
        made.append(Fleet(tmp_path, *args, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.close()
