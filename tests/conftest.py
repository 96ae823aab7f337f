import pytest
from hypothesis import HealthCheck, settings

from torchloom_core.transport.broker import EmbeddedBroker

# How fast the machine is decides no test.
settings.register_profile(
    "torchloom", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("torchloom")


@pytest.fixture
async def broker(tmp_path):
    """A running embedded broker for the run ``run``, with its credentials."""
    broker = EmbeddedBroker(tmp_path / "state", "run")
    await broker.start()
    yield broker
    await broker.stop()
