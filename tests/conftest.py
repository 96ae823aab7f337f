import pytest

from torchloom_core.broker import EmbeddedBroker


@pytest.fixture
async def broker(tmp_path):
    """A running embedded broker for the run ``run``, with its credentials."""
    broker = EmbeddedBroker(tmp_path / "state", "run")
    await broker.start()
    yield broker
    await broker.stop()
