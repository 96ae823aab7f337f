import asyncio
import os
import signal

import pytest

from tests.deadlines import DEADLINE_S
from torchloom_core.config.loading import parse
from torchloom_core.live.kernel.plugins.host import ActivePlugins
from torchloom_core.live.weaver import run


@pytest.fixture
async def start_weaver(tmp_path):
    """Return a function that starts a fresh Weaver, and returns its URL."""
    running = []

    async def start(settings="", effectors=()):
        config = parse(f"[weaver]\nstate_dir = '{tmp_path}'\n{settings}")
        ready = asyncio.get_running_loop().create_future()
        plugins = ActivePlugins(effectors=effectors)
        weaver = run(config, plugins, lambda url, _: ready.set_result(url))
        running.append(asyncio.create_task(weaver))
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait({*running, ready}, return_when=asyncio.FIRST_COMPLETED)
            return await ready

    yield start
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.gather(*running)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().remove_signal_handler(number)
