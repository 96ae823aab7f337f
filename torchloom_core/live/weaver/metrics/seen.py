"""The parts of a Weaver that its metrics read."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from torchloom_core.config.schema import Config
from torchloom_core.live.kernel.kernel import Kernel
from torchloom_core.live.kernel.plugins.host import ActivePlugins


class Seen(NamedTuple):
    """What is read of a Weaver at each scrape, on its event loop."""

    config: Config
    plugins: ActivePlugins
    kernel: Kernel
    now_ns: Callable[[], int]
    malformed: Callable[[], int]
    recording: Callable[[], str]
    broker_full: Callable[[], str]
    waiting: Callable[[], Mapping[str, int]]
