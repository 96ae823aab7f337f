"""Start and stop a Weaver: broker, epoch, recovery and loop, and all of it in reverse.

``torchloom weaver`` calls :func:`run`; the demo and the tests start it as its own process.
"""

import asyncio
import gc
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from torchloom_core.config.schema import Config
from torchloom_core.floor.clock import SystemClock
from torchloom_core.floor.errors import (
    BrokerError,
    OutrankedError,
    OvertakenError,
    RunHeldError,
    SupersededError,
)
from torchloom_core.live.kernel.plugins.host import ActivePlugins
from torchloom_core.live.trajectory.layout import newest_epoch, run_folder
from torchloom_core.live.trajectory.writer import TrajectoryWriter
from torchloom_core.live.transport import NatsBus
from torchloom_core.live.transport.broker import EmbeddedBroker
from torchloom_core.live.transport.security.enrolment import Enrolment
from torchloom_core.live.transport.security.grants import Grants
from torchloom_core.live.weaver.daemon import Weaver
from torchloom_core.live.weaver.epoch_rise import EpochRises
from torchloom_core.live.weaver.folder_lock import FolderLock
from torchloom_core.live.weaver.join_file import write_join_file
from torchloom_core.live.weaver.lighthouse_process import LighthouseProcess
from torchloom_core.live.weaver.recovery import Inheritance
from torchloom_core.live.weaver.run_ownership import lock_folder, take_run
from torchloom_core.wire import subjects

_EMBEDDED_PATIENCE_S = 20.0
"""How long the first connect waits for the embedded server."""

_Own = Callable[[NatsBus], Awaitable[None]]
"""Makes this process the owner of the run, or raises RunHeldError."""


async def run(
    config: Config,
    plugins: ActivePlugins,
    ready: Callable[[str, str], None] = lambda url, lighthouse: None,
    ending: Callable[[], None] = lambda: None,
    *,
    take_over: bool = False,
    renew: Callable[[], ActivePlugins] | None = None,
) -> None:
    """Run a Weaver until SIGINT or SIGTERM.

    ``ready`` is called with the broker's URL and the lighthouse's, empty if the Weaver starts none;
    ``ending`` once the Weaver has ended, while its broker still serves. ``take_over``: take the run
    from another Weaver that controls it, which then ends. ``renew`` returns fresh plugins, for a
    restart under a higher epoch. TorchloomError, one line, if the broker, the state folder or the
    run is not available.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stop.set)
    lock = await lock_folder(Path(config.weaver.state_dir), take_over=take_over)
    try:
        own = partial(take_run, run=config.run.name, lock=lock, take_over=take_over)
        await _run(config, plugins, ready, ending, stop, lock, own, renew)
    finally:
        lock.release()


async def _run(
    config: Config,
    plugins: ActivePlugins,
    ready: Callable[[str, str], None],
    ending: Callable[[], None],
    stop: asyncio.Event,
    lock: FolderLock,
    own: _Own,
    renew: Callable[[], ActivePlugins] | None,
) -> None:
    broker = None if config.broker.url else _embedded(config)
    lighthouse = _lighthouse(config)
    serving, over, rises = False, False, EpochRises()
    try:
        while not over:
            try:
                async with AsyncExitStack() as stack:
                    call = _already_ready if serving else ready
                    starting = _start(config, plugins, broker, lighthouse, stack, call, own, rises)
                    weaver = await _unless(stop, starting)
                    if weaver is not None:
                        serving = True
                        if not lock.held:
                            later = asyncio.create_task(lock.take_later())
                            stack.callback(later.cancel)
                        gc.freeze()  # what is there now stays; collecting it takes 50 ms
                        await weaver.run(stop)
                over = True
            except OutrankedError as error:
                rises.note(error)
                plugins = renew() if renew else plugins
    except (SupersededError, RunHeldError):
        raise
    except BaseException:
        # After a failure the server keeps running, and the next Weaver adopts it. A server that
        # was launched for a Weaver that never served is stopped.
        if broker is not None and broker.launched and not serving:
            await broker.stop()
        raise
    ending()
    if lighthouse is not None:
        await lighthouse.stop_unless_needed()  # without a Weaver it is not supervised
    if broker is not None:
        await broker.stop()


def _already_ready(url: str, lighthouse: str) -> None:
    """Do nothing: ``ready`` was called at the first start."""


def _embedded(config: Config) -> EmbeddedBroker:
    return EmbeddedBroker(
        Path(config.weaver.state_dir),
        config.run.name,
        host=config.broker.host,
        port=config.broker.port,
    )


def _lighthouse(config: Config) -> LighthouseProcess | None:
    if config.lighthouse is None:
        return None
    return LighthouseProcess(Path(config.weaver.state_dir), config.run.name, config.lighthouse)


async def _start(
    config: Config,
    plugins: ActivePlugins,
    broker: EmbeddedBroker | None,
    lighthouse: LighthouseProcess | None,
    stack: AsyncExitStack,
    ready: Callable[[str, str], None],
    own: _Own,
    rises: EpochRises,
) -> Weaver:
    """Return a Weaver that has taken over; ``stack`` gets what has to be undone at its end."""
    settings = config.broker
    url, creds = settings.url, Path(settings.creds) if settings.creds else None
    if broker is not None:
        await broker.start()
        supervising = asyncio.create_task(broker.supervise())
        stack.callback(supervising.cancel)
        url, creds = broker.url, broker.credentials.weaver_creds
    clock, name = SystemClock(), config.run.name
    patience_s = 0.0 if broker is None else _EMBEDDED_PATIENCE_S
    with _remedy_in_errors(broker):
        bus = await NatsBus.connect(url, name, creds=creds, clock=clock, patience_s=patience_s)
        stack.push_async_callback(bus.close)
        await own(bus)
        stack.push_async_callback(bus.owner.give_back)
        while (weaver := await _take_over(config, plugins, bus, clock, stack, rises)) is None:
            pass
        enrolment = None
        if broker is not None:
            credentials = broker.credentials
            grants = Grants(credentials.grants_path)
            enrolment = Enrolment(name, credentials.worker_jwt, grants)
        await weaver.admit_workers(enrolment)
    where = ""
    if lighthouse is not None:
        light_creds = creds if broker is None else broker.credentials.lighthouse_creds
        await lighthouse.start(url, light_creds, weaver.training_replicas)
        supervising = asyncio.create_task(lighthouse.supervise())
        stack.callback(supervising.cancel)
        where = lighthouse.url
    write_join_file(Path(config.weaver.state_dir), config, url, broker)
    ready(url, where)
    return weaver


@contextmanager
def _remedy_in_errors(broker: EmbeddedBroker | None) -> Iterator[None]:
    try:
        yield
    except BrokerError as error:
        if broker is None:
            raise
        raise type(error)(f"{error}; {broker.remedy}") from None


async def _take_over(
    config: Config,
    plugins: ActivePlugins,
    bus: NatsBus,
    clock: SystemClock,
    stack: AsyncExitStack,
    rises: EpochRises,
) -> Weaver | None:
    """Return a Weaver that has taken over, or None if the state has to be read again."""
    name = config.run.name
    folder = run_folder(Path(config.weaver.state_dir), name)
    epoch = await bus.claim_epoch(above=max(newest_epoch(folder), rises.above))
    left = await bus.left()
    inheritance = Inheritance(left.entries, f"bucket {subjects.bucket(name)}")
    inheritance.follow(folder, left.epoch)
    trajectory = TrajectoryWriter(folder, name, epoch, config, plugins.versions, clock.now_ns())
    async with AsyncExitStack() as attempt:
        attempt.callback(trajectory.close)
        weaver = Weaver(config, plugins, bus, clock, epoch, trajectory, rises.believed)
        try:
            await weaver.start(inheritance.recovered(epoch), inheritance.poison)
        except OvertakenError:
            # Two Weavers started at once: the one with the lower epoch ends, this one tries again.
            return None
        stack.push_async_exit(attempt.pop_all())
    return weaver


async def _unless(stop: asyncio.Event, starting: Coroutine[Any, Any, Weaver]) -> Weaver | None:
    """Return the started Weaver, or None if ``stop`` was set first."""
    task, stopping = asyncio.create_task(starting), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        return None
    finally:
        for pending in (task, stopping):
            pending.cancel()
        await asyncio.gather(task, stopping, return_exceptions=True)
