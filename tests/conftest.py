import logging
import os

import pytest
from hypothesis import HealthCheck, settings

from tests.deadlines import TEST_S
from tests.waiting import Logged
from torchloom_core.transport.broker import EmbeddedBroker

# How fast the machine is decides no test.
settings.register_profile(
    "torchloom", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("quick", settings.get_profile("torchloom"), max_examples=10)
settings.load_profile("torchloom")
os.environ.setdefault("PYTEST_TIMEOUT", f"{TEST_S:g}")


@pytest.fixture
async def broker(tmp_path):
    """A running embedded broker for the run ``run``, with its credentials."""
    broker = EmbeddedBroker(tmp_path / "state", "run")
    await broker.start()
    yield broker
    await broker.stop()


@pytest.fixture
def logged(caplog):
    """What is logged from here on, to wait for."""
    handler = Logged()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)
