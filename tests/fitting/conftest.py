import pytest

from tests.evaluate.traces import HOUR_NS, write_bundle
from tests.fitting.plugins import warm
from torchloom_core.lab.fitting.time_split import FitSettings


@pytest.fixture(scope="session")
def bundle(tmp_path_factory):
    """120 days of 20 nodes whose heat rises before most failures."""
    path = tmp_path_factory.mktemp("traces") / "t.tltrace"
    return write_bundle(path, rate=0.03, metrics={"heat": warm(strength=2.0)})[0]


@pytest.fixture(scope="session")
def settings():
    return FitSettings(until_ns=60 * 24 * HOUR_NS, tick_s=12 * 3600.0, repair_s=86_400.0)
