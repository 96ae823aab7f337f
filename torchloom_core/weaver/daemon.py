"""The Weaver's life: start the broker, take the epoch, recover, run the loop, stop.

``torchloom weaver`` calls :func:`run`; the demo and the tests start it as its own process.
"""

import asyncio
import logging
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec

from torchloom_core import subjects
from torchloom_core.actions import Alert
from torchloom_core.broker import EmbeddedBroker
from torchloom_core.bus import NatsBus
from torchloom_core.clock import SystemClock
from torchloom_core.config import Config
from torchloom_core.control import Status
from torchloom_core.decisions import (
    Control,
    CordonOver,
    ForecastWanted,
    Input,
    Notice,
    Outcome,
    Output,
    PolicyFailed,
    Recovered,
    Reply,
    Tick,
    Verdict,
)
from torchloom_core.enrolment import Enrolment
from torchloom_core.errors import StateError
from torchloom_core.kernel import Kernel
from torchloom_core.messages import JoinReply, JoinRequest, Telemetry
from torchloom_core.plugins import ActivePlugins
from torchloom_core.policy_host import DeadlineGuard
from torchloom_core.summaries import summarise
from torchloom_core.trajectory.layout import run_folder
from torchloom_core.trajectory.writer import TrajectoryWriter
from torchloom_core.weaver.desk import Desk
from torchloom_core.weaver.forecasting import forecast
from torchloom_core.weaver.join_file import write_join_file
from torchloom_core.weaver.outbox import CONTROL_KEY, Outbox, may_change_control
from torchloom_core.weaver.status import describe, describe_knobs

log = logging.getLogger(__name__)

_PREDICTOR_PATIENCE_S = 60.0
_GOODBYE_S = 5.0


class Weaver:
    """One life of the controller, under one fencing epoch."""

    def __init__(
        self,
        config: Config,
        plugins: ActivePlugins,
        bus: NatsBus,
        clock: SystemClock,
        epoch: int,
        trajectory: TrajectoryWriter,
    ) -> None:
        self._config = config
        self._plugins = plugins
        self._bus = bus
        self._clock = clock
        self._epoch = epoch
        self._trajectory = trajectory
        self._kernel = Kernel(config, plugins, DeadlineGuard(config.weaver.policy_budget_s))
        self._outbox = Outbox(bus, clock, epoch)
        self._forecasts: set[asyncio.Task[None]] = set()
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.desk = Desk(epoch, self.enter, self.status, lambda: describe_knobs(self._kernel))

    # --- inputs ---

    def receive(self, message: Telemetry | Input, ts_ns: int) -> None:
        """Feed one input to the kernel, record it, and post what it led to."""
        try:
            if isinstance(message, Telemetry):
                self._trajectory.telemetry(message, ts_ns)
                self._kernel.step(message, ts_ns)
                return
            outputs = self._kernel.step(message, ts_ns)
            self._trajectory.event(message, ts_ns, outputs)
            if outputs:
                self._post(outputs)
        except StateError as error:
            self._end(error)

    def enter(self, message: Input) -> None:
        """Feed an input that the Weaver itself makes, stamped now."""
        self.receive(message, self._clock.now_ns())

    def _post(self, outputs: Sequence[Output]) -> None:
        # On file before anyone is told: what was done is never missing from the trajectory.
        self._trajectory.flush()
        changed = any(map(may_change_control, outputs))
        self._outbox.post(outputs, self._kernel.control() if changed else None)
        for output in outputs:
            _log(output)
            if isinstance(output, Reply):
                self.desk.reply(output)
            elif isinstance(output, ForecastWanted):
                task = asyncio.create_task(self._forecast(output))
                self._forecasts.add(task)
                task.add_done_callback(self._forecasts.discard)

    async def _forecast(self, wanted: ForecastWanted) -> None:
        predictor = self._plugins.predictors[wanted.predictor]
        view = self._kernel.predictor_view(wanted.predictor)
        patience_s = max(_PREDICTOR_PATIENCE_S, predictor.every_s)
        self.enter(await forecast(wanted.id, wanted.predictor, predictor, view, patience_s))

    # --- the loop ---

    async def start(self, control: Control) -> None:
        """Take over what the last Weaver left, then open the doors."""
        self.enter(Recovered(epoch=self._epoch, control=control))
        if control != Control():
            text = "epoch %d, after an earlier Weaver that left %d commands in flight"
            log.info(text, self._epoch, len(control.flights))
        for failure in self._plugins.failed:
            log.warning("quarantined: %s", failure.detail)
        await self._bus.open(self.receive, lambda subject, reason: None)
        await self._bus.serve(self.desk.verbs)
        await self._bus.on_epoch(self._superseded)
        await self._bus.roll_call(self._epoch)

    async def admit_workers(self, enrolment: Enrolment) -> None:
        """Give credentials to workers that ask with the join credentials."""

        async def handle(request: JoinRequest) -> JoinReply:
            alive = self._kernel.fleet.alive(request.worker, self._clock.now_ns())
            if alive is None:
                enrolment.release(request.worker)
            else:
                enrolment.seen(request.worker, alive)
            reply = enrolment.grant(request)
            if reply.error:
                log.warning("%s may not join: %s", request.worker, reply.error)
            return reply

        await self._bus.serve_join(handle)

    async def run(self, stop: asyncio.Event) -> None:
        """Tick until told to stop or until something ends this Weaver's life.

        Raises
        ------
        StateError
            If the trajectory cannot be written, or another Weaver took over the run.
        """
        sending = asyncio.create_task(self._outbox.run())
        ticking = asyncio.create_task(self._tick_forever())
        stopping = asyncio.create_task(stop.wait())
        try:
            ends: set[asyncio.Future[Any]] = {sending, ticking, stopping, self._over}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in (self._over, ticking, sending):
                if end.done():
                    end.result()
            await asyncio.wait({asyncio.create_task(self._outbox.drained())}, timeout=_GOODBYE_S)
        finally:
            tasks = {sending, ticking, stopping, *self._forecasts}
            for pending in tasks:
                pending.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._trajectory.close()

    async def _tick_forever(self) -> None:
        loop = asyncio.get_running_loop()
        tick_s = self._config.weaver.tick_s
        due = loop.time() + tick_s
        while True:
            await asyncio.sleep(max(0.0, due - loop.time()))
            self.enter(Tick())
            self._trajectory.flush()
            due = max(due + tick_s, loop.time())

    def _superseded(self, epoch: int) -> None:
        if epoch > self._epoch:
            run = self._config.run.name
            self._end(StateError(f"another Weaver took over run {run} under epoch {epoch}"))

    def _end(self, error: StateError) -> None:
        if not self._over.done():
            self._over.set_exception(error)

    def status(self) -> Status:
        """Describe the run at this moment."""
        return describe(
            self._kernel,
            self._config,
            self._plugins,
            now_ns=self._clock.now_ns(),
            malformed=self._bus.malformed,
            log=str(self._trajectory.folder),
        )


def _log(output: Output) -> None:
    match output:
        case Notice(kind="hello" | "exit") | CordonOver() | Verdict():
            level = logging.INFO
        case Outcome(action=Alert()) | Notice() | PolicyFailed():
            level = logging.WARNING
        case Outcome(result=result):
            level = logging.INFO if result == "done" else logging.WARNING
        case _:
            return
    kind = str(output.__struct_config__.tag)
    log.log(level, "%s: %s", kind, summarise(kind, msgspec.to_builtins(output)))


async def run(
    config: Config, plugins: ActivePlugins, ready: Callable[[str], None] = lambda url: None
) -> None:
    """Run a Weaver until SIGINT or SIGTERM; ``ready`` is called with the broker's URL.

    Raises
    ------
    TorchloomError
        If the broker, the state folder or the run cannot be had; one line each.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stop.set)
    state_dir = Path(config.weaver.state_dir)
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        broker = None
        url, creds = config.broker.url, Path(config.broker.creds) if config.broker.creds else None
        if not url:
            broker = EmbeddedBroker(
                state_dir, config.run.name, host=config.broker.host, port=config.broker.port
            )
            await broker.start()
            supervising = asyncio.create_task(broker.supervise())
            stack.callback(supervising.cancel)
            url, creds = broker.url, broker.credentials.weaver_creds
        bus = await NatsBus.connect(url, config.run.name, creds=creds, clock=clock)
        stack.push_async_callback(bus.close)
        epoch = await bus.claim_epoch()
        control = _read_control(await bus.get(CONTROL_KEY), config.run.name)
        trajectory = TrajectoryWriter(
            run_folder(state_dir, config.run.name),
            config.run.name,
            epoch,
            config,
            plugins.versions,
            clock.now_ns(),
        )
        weaver = Weaver(config, plugins, bus, clock, epoch, trajectory)
        await weaver.start(control)
        if broker is not None:
            await weaver.admit_workers(Enrolment(config.run.name, broker.credentials.worker_jwt))
        write_join_file(state_dir, config, url, broker)
        ready(url)
        await weaver.run(stop)
    if broker is not None:
        await broker.stop()


def _read_control(left: bytes | None, run: str) -> Control:
    """Return what the last Weaver left in the run's bucket."""
    try:
        return msgspec.json.decode(left, type=Control) if left else Control()
    except msgspec.DecodeError as error:
        place = f"bucket {subjects.bucket(run)}, key {CONTROL_KEY}"
        raise StateError(f"{place}: the state left there cannot be read: {error}") from None
