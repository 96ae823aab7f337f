"""Start and stop a Weaver: broker, epoch, recovery and loop, and all of it in reverse.

``torchloom weaver`` calls :func:`run`; the demo and the tests start it as its own process.
"""

import asyncio
import gc
import logging
import math
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path

from torchloom_core.config.loading import channels
from torchloom_core.config.monitoring import Metrics, Tracing
from torchloom_core.config.schema import Config
from torchloom_core.floor.clock import SECOND_NS, SystemClock
from torchloom_core.floor.errors import (
    BrokerError,
    OutrankedError,
    OvertakenError,
    RunHeldError,
    StateError,
    SupersededError,
)
from torchloom_core.floor.files import write_private
from torchloom_core.floor.first_done import end_all, first_done
from torchloom_core.floor.heap import return_large_blocks
from torchloom_core.live.kernel.plugins.host import ActivePlugins
from torchloom_core.live.trajectory.layout import newest_epoch, run_folder
from torchloom_core.live.trajectory.writer import TrajectoryWriter, repair_earlier_epochs
from torchloom_core.live.transport import NatsBus
from torchloom_core.live.transport.broker import EmbeddedBroker, OwnServer
from torchloom_core.live.transport.lighthouse_place import LighthousePlace
from torchloom_core.live.weaver.access_service import AccessService
from torchloom_core.live.weaver.access_sharing import AccessSharing
from torchloom_core.live.weaver.daemon import Weaver
from torchloom_core.live.weaver.epoch_rise import EpochRises
from torchloom_core.live.weaver.lighthouse_process import LighthouseProcess
from torchloom_core.live.weaver.notify.alarms import Alarm
from torchloom_core.live.weaver.notify.notifier import notifying
from torchloom_core.live.weaver.record_copies import RecordSender
from torchloom_core.live.weaver.recovery import Inheritance
from torchloom_core.live.weaver.run_ownership import FolderLock, lock_folder, take_run
from torchloom_core.live.weaver.standby import stand_by
from torchloom_core.wire import codec, subjects
from torchloom_core.wire.messages import JoinFile

_log = logging.getLogger(__name__)

_PATIENCE_S = 20.0
"""How long the first connect waits for the embedded server."""

_AGAIN_S = 2.0


async def run(
    config: Config,
    plugins: ActivePlugins,
    ready: Callable[[str, str], None] = lambda url, lighthouse: None,
    ending: Callable[[], None] = lambda: None,
    *,
    take_over: bool = False,
    standby: bool = False,
    renew: Callable[[], ActivePlugins] | None = None,
) -> None:
    """Run a Weaver until SIGINT or SIGTERM.

    ``ready`` is called with the broker's URL and the lighthouse's, empty if the Weaver starts none;
    ``ending`` once the Weaver has ended, while its broker still serves. ``take_over``: take the run
    from another Weaver that controls it, which then ends. ``standby``: wait until no Weaver leads
    the run, then lead it; wait again once another one has taken it over. ``renew`` returns fresh
    plugins, for a restart under a higher epoch. TorchloomError, one line, if the broker, the state
    folder or the run is not available.
    """
    return_large_blocks()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stop.set)
    lock = await lock_folder(Path(config.weaver.state_dir), take_over=take_over)
    try:
        process = _Process(config, lock, take_over=take_over, standby=standby)
        await process.serve(stop, plugins, ready, renew)
        ending()
        await process.stop_servers()
    finally:
        lock.release()


class _Process:
    """The servers of one process, and its Weavers: another one follows one that is outranked."""

    def __init__(self, config: Config, lock: FolderLock, *, take_over: bool, standby: bool) -> None:
        self._config = config
        self._state_dir = Path(config.weaver.state_dir)
        self._run = config.run.name
        self._lock = lock
        self._take_over = take_over
        self._standby = standby
        self._rises = EpochRises()
        self._is_serving = self._is_taking = self._was_led = False
        settings = config.broker
        self._broker = (
            None if settings.url else EmbeddedBroker(self._state_dir, self._run, settings)
        )
        self._own = OwnServer(self._state_dir, self._run, settings) if settings.accounts else None
        self._lighthouse = (
            LighthouseProcess(self._state_dir, self._run, config.lighthouse)
            if config.lighthouse
            else None
        )

    async def serve(
        self,
        stop: asyncio.Event,
        plugins: ActivePlugins,
        ready: Callable[[str, str], None],
        renew: Callable[[], ActivePlugins] | None,
    ) -> None:
        """Run Weavers until ``stop`` is set or one fails."""
        try:
            while not stop.is_set():
                self._is_taking = False
                try:
                    async with AsyncExitStack() as stack:
                        weaver = await first_done(self._start(plugins, stack, ready), stop.wait())
                        if isinstance(weaver, Weaver):
                            self._is_serving, self._is_taking = True, False
                            if not self._lock.held:
                                later = asyncio.create_task(self._lock.take(math.inf))
                                stack.callback(later.cancel)
                            gc.freeze()  # what is there now stays; collecting it takes 50 ms
                            await weaver.run(stop)
                except OutrankedError as error:
                    self._rises.note(error)
                    plugins = renew() if renew else plugins
                except StateError as error:
                    is_replaced = self._standby and isinstance(error, SupersededError)
                    if not (is_replaced or self._is_taking):
                        raise
                    if not is_replaced:  # another standby takes the lease first
                        await first_done(asyncio.sleep(_AGAIN_S), stop.wait())
                    _log.warning("%s; standing by again", error)
                    plugins = renew() if renew else plugins
        except (SupersededError, RunHeldError):
            raise
        except BaseException:
            # After a failure the server keeps running, and the next Weaver adopts it. A server that
            # was launched for a Weaver that never served is stopped.
            if self._broker is not None and self._broker.launched and not self._is_serving:
                await self._broker.stop()
            raise

    async def stop_servers(self) -> None:
        """Stop the lighthouse, unless groups use it, and the broker: none supervises them now."""
        if self._lighthouse is not None:
            await self._lighthouse.stop_unless_needed()
        if self._broker is not None:
            await self._broker.stop()

    async def _start(
        self, plugins: ActivePlugins, stack: AsyncExitStack, ready: Callable[[str, str], None]
    ) -> Weaver:
        """Return a Weaver that has taken over; ``stack`` gets what has to be undone at its end."""
        settings, broker, clock = self._config.broker, self._broker, SystemClock()
        url, creds = settings.url, Path(settings.creds) if settings.creds else None
        light_creds, patience_s, tls, servers = creds, 0.0, settings.tls, 0
        if broker is not None:
            await broker.start()
            stack.callback(asyncio.create_task(broker.supervise()).cancel)
            await broker.joined()
            url, servers = broker.urls_from_here, broker.servers
            creds, patience_s = broker.credentials.weaver_creds, _PATIENCE_S
            light_creds, tls = broker.credentials.lighthouse_creds, broker.tls
        if self._own is not None:
            creds = self._own.credentials.weaver_creds
            light_creds = self._own.credentials.lighthouse_creds
        try:
            bus = await NatsBus.connect(
                url,
                self._run,
                creds=creds,
                clock=clock,
                patience_s=patience_s,
                lease_s=self._config.standby.lease_s,
                tls=tls,
                servers=servers,
            )
            stack.push_async_callback(bus.close)
            stack.push_async_callback(bus.lease.give_back)
            sharing = None
            if broker is not None and broker.servers:
                sharing = AccessSharing(bus.state, bus.lease, broker)
                stack.callback(asyncio.create_task(sharing.run()).cancel)
            place = LighthousePlace(bus.state, self._config.lighthouse)
            if self._standby:
                root = run_folder(self._state_dir, self._run)
                waiting = stand_by(bus, self._run, self._lock, root, self._config.trajectory)
                own = [self._lighthouse.retire(place)] if self._lighthouse else []
                self._was_led = await first_done(waiting, *own)
                self._is_taking = True
            else:
                await take_run(bus, self._run, self._lock, take_over=self._take_over)
                await bus.lease.seize()
            stack.push_async_callback(bus.owner.give_back)
            await bus.standbys.listen()
            if sharing is not None:
                await sharing.merge()
            server = broker or self._own
            write = partial(write_join_file, self._state_dir, self._config, url, server)
            access = AccessService(self._run, server, self._config.join, write, bus.drop_reports)
            if sharing is not None:
                access.share = sharing.merge
            while (weaver := await self._take_state(plugins, bus, clock, stack, access)) is None:
                pass
            await weaver.admit_workers(access.enrolment)
        except BrokerError as error:
            if broker is None:
                raise
            raise type(error)(f"{error}; {broker.remedy}") from None
        if self._config.metrics is not None:
            await stack.enter_async_context(self._serve_metrics(self._config.metrics, weaver))
        if self._config.tracing is not None:
            await stack.enter_async_context(self._trace(self._config.tracing, weaver))
        await stack.enter_async_context(self._notify(weaver))
        where = ""
        if self._lighthouse is not None:
            expected = weaver.training_replicas
            await self._lighthouse.start(url, light_creds, expected, place, tls)
            stack.callback(asyncio.create_task(self._lighthouse.supervise()).cancel)
            where = self._lighthouse.url
        access.write_join_file()
        stack.callback(asyncio.create_task(access.renew_join_file()).cancel)
        if not self._is_serving:
            ready(url, where)
        return weaver

    def _serve_metrics(
        self, settings: Metrics, weaver: Weaver
    ) -> AbstractAsyncContextManager[None]:
        from torchloom_core.live.weaver.metrics.server import serving

        broker = self._broker
        monitor_url = (lambda: broker.monitor_url) if broker is not None else (lambda: "")
        return serving(settings, weaver.seen, weaver.watchers, monitor_url)

    def _trace(self, settings: Tracing, weaver: Weaver) -> AbstractAsyncContextManager[None]:
        from torchloom_core.live.weaver.tracing import tracing

        return tracing(settings, weaver.seen, weaver.watchers)

    def _notify(self, weaver: Weaver) -> AbstractAsyncContextManager[None]:
        epoch = weaver.seen.kernel.commands.epoch
        text = f"a standby took over run {self._run} under epoch {epoch}"
        return notifying(
            channels(self._config),
            self._run,
            epoch,
            weaver.watchers,
            weaver.seen.recording,
            lambda: weaver.seen.now_ns() / SECOND_NS,
            weaver.enter,
            [Alarm("take_over", "take-over", text)] if self._was_led else (),
        )

    async def _take_state(
        self,
        plugins: ActivePlugins,
        bus: NatsBus,
        clock: SystemClock,
        stack: AsyncExitStack,
        access: AccessService,
    ) -> Weaver | None:
        """Return a Weaver that has taken over, or None if the state has to be read again."""
        config, folder = self._config, run_folder(self._state_dir, self._run)
        await bus.lease.sure()
        epoch = await bus.state.claim_epoch(above=max(newest_epoch(folder), self._rises.above))
        last_epoch, entries = await bus.state.left()
        inheritance = Inheritance(entries, f"bucket {subjects.bucket(self._run)}")
        inheritance.follow(folder, last_epoch)
        versions, now_ns = plugins.versions, clock.now_ns()
        record = await bus.record_stream()
        sender = RecordSender(record, bus, config.standby, folder, epoch)
        bus.recorded = sender.sent
        trajectory = TrajectoryWriter(
            folder, self._run, epoch, config, versions, now_ns, repair=not self._standby
        )
        async with AsyncExitStack() as attempt:
            attempt.push_async_callback(sender.finish)
            attempt.callback(trajectory.close)
            attempt.push_async_callback(end_all, asyncio.create_task(sender.run()))
            believed = self._rises.believed
            weaver = Weaver(config, plugins, bus, clock, epoch, trajectory, believed)
            weaver.operator_service.access, weaver.floods.cut = access, access.cut
            try:
                await weaver.start(inheritance.recovered(epoch), inheritance.poison)
            except OvertakenError:
                # Two Weavers started at once: that with the lower epoch ends, this tries again.
                return None
            if self._standby:  # it may read much, and nothing waits for it
                repairing = asyncio.create_task(_repair(trajectory, folder))
                attempt.push_async_callback(asyncio.wait, {repairing})
            stack.push_async_exit(attempt.pop_all())
        return weaver


async def _repair(trajectory: TrajectoryWriter, root: Path) -> None:
    trajectory.seal(await asyncio.to_thread(repair_earlier_epochs, root))


def write_join_file(
    state_dir: Path,
    config: Config,
    url: str,
    broker: EmbeddedBroker | OwnServer | None,
    expires_s: int,
) -> None:
    """Write the file by which trainers find a Weaver, readable by its owner; or StateError.

    Its credentials end at ``expires_s``, in seconds of Unix time, or never if it is 0.
    """
    settings = config.broker
    creds = settings.worker_creds or settings.creds
    try:
        if broker is not None:
            text = broker.credentials.join_creds_text(expires_s)
            url = broker.shared_url
        else:
            text = Path(creds).read_text(encoding="utf-8") if creds else ""
        state_dir.mkdir(parents=True, exist_ok=True)
        ca = Path(settings.ca).read_text(encoding="ascii") if settings.ca else ""
        own = (settings.certificate, settings.key) if settings.url else ("", "")
        join = JoinFile(
            url=url,
            run=config.run.name,
            creds=text,
            enrol=broker is not None,
            ca=ca,
            certificate=own[0],
            key=own[1],
        )
        write_private(state_dir / "join.json", codec.encode(join).decode())
    except OSError as error:
        raise StateError(f"{error.filename}: {error.strerror}") from None
