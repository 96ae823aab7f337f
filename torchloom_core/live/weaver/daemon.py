"""The running Weaver: inputs go to the kernel and on record, outputs go out; and the tick.

:mod:`torchloom_core.live.weaver.startup` starts it and ends it.
"""

import asyncio
import logging
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from torchloom_core.config.schema import Config
from torchloom_core.floor.clock import SystemClock
from torchloom_core.floor.errors import KernelFailure, SupersededError, TorchloomError
from torchloom_core.floor.first_done import end_all
from torchloom_core.floor.plain_text import RateLimitedLog
from torchloom_core.live.kernel.kernel import Kernel
from torchloom_core.live.kernel.plugins.host import ActivePlugins
from torchloom_core.live.trajectory.reader import Recorded
from torchloom_core.live.trajectory.writer import TrajectoryWriter
from torchloom_core.live.transport import NatsBus
from torchloom_core.live.transport.security.enrolment import Enrolment
from torchloom_core.live.weaver.admission import Admission
from torchloom_core.live.weaver.courier import Courier
from torchloom_core.live.weaver.deadline_guard import DeadlineGuard
from torchloom_core.live.weaver.effectors import Effectors
from torchloom_core.live.weaver.epoch_rise import EpochWatch
from torchloom_core.live.weaver.flood_watch import FloodWatch
from torchloom_core.live.weaver.metrics.seen import Seen
from torchloom_core.live.weaver.operator_service import OperatorService
from torchloom_core.live.weaver.outbox import RECORDED_HERE, Outbox, WorkerClocks
from torchloom_core.live.weaver.output_log import log_output
from torchloom_core.live.weaver.plugin_threads import PredictorRunner
from torchloom_core.live.weaver.recording import Recording
from torchloom_core.live.weaver.recovery import same_input
from torchloom_core.live.weaver.rendezvous_links import RendezvousLinks
from torchloom_core.live.weaver.report_watch import ReportWatch
from torchloom_core.live.weaver.retention_runner import RetentionRunner
from torchloom_core.live.weaver.status import describe, describe_knobs
from torchloom_core.live.weaver.watchers import Watchers
from torchloom_core.wire.codec import Bytes
from torchloom_core.wire.decisions import (
    ForecastWanted,
    InputFailed,
    Notice,
    Output,
    PauseChanged,
    Reply,
)
from torchloom_core.wire.events import (
    Control,
    Input,
    Noticed,
    RecordingGap,
    Recovered,
    Tick,
    Withheld,
)
from torchloom_core.wire.messages import Hello, Telemetry
from torchloom_core.wire.operator import Page
from torchloom_core.wire.requests import Request
from torchloom_core.wire.status import Status
from torchloom_core.wire.steering import LighthouseView

log = logging.getLogger(__name__)

_GOODBYE_S = 5.0

_PAUSE_EVERY_S = 1.0
"""How often the pause in force is published; workers resume after 3 s without it."""


class Weaver:
    """The controller of one run, under one epoch."""

    def __init__(
        self,
        config: Config,
        plugins: ActivePlugins,
        bus: NatsBus,
        clock: SystemClock,
        epoch: int,
        trajectory: TrajectoryWriter,
        believed: int = 0,
    ) -> None:
        self._config = config
        self._plugins = plugins
        self._bus = bus
        self._clock = clock
        self._epoch = epoch
        self._trajectory = trajectory
        self._retention = RetentionRunner(trajectory.folder.parent, config.trajectory)
        self._recording = Recording(trajectory, clock, config.trajectory, self._retention.hurry)
        self._kernel = Kernel(config, plugins, DeadlineGuard(config.weaver.policy_budget_s))
        taken_until_ns = partial(bus.reports.taken_until_ns, clock.now_ns)
        self._reports = ReportWatch(self._kernel, clock, taken_until_ns, self.enter)
        self._poison: Recorded | None = None
        self._forecasts = PredictorRunner(
            plugins.predictors, self._kernel.predictor_view, self.enter
        )
        self._limited_log = RateLimitedLog(log, clock.now_ns)
        warn = self._limited_log.add
        self._clocks = WorkerClocks(warn)
        self.floods = FloodWatch(config.join.cut_after_s)
        self._admission = Admission(self._kernel, config, clock, warn)
        self._courier = Courier(bus, clock, self._clocks.moved)
        self._outbox = Outbox(
            bus,
            clock,
            epoch,
            self._courier,
            withheld=lambda commands: self.enter(Withheld(commands=commands)),
            record=trajectory.flush,
        )
        links = RendezvousLinks(config, plugins, self._kernel.host.quarantined, self.enter)
        self._effectors = Effectors(
            bus, self._outbox, links, plugins.effectors, config.run.name, epoch, self.enter
        )
        self._epochs = EpochWatch(epoch, believed, bus.state.newest_epoch, self._end, warn)
        self.watchers = Watchers()
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        knobs = partial(describe_knobs, self._kernel)
        self.operator_service = OperatorService(
            epoch, self.enter, self.status, knobs, self._outbox.settled, bus.standbys.are_none
        )

    # --- inputs ---

    def receive(self, message: Telemetry | Input, ts_ns: int, data: Bytes = b"") -> bool:
        """Feed one input to the kernel, record it, post its outputs; False while it is ending.

        ``data``: telemetry as it was sent, which is recorded.
        """
        if self._over.done():
            return False
        try:
            if isinstance(message, Telemetry):
                self._trajectory.telemetry(data, ts_ns)
                self._kernel.step(message, ts_ns)
                return True
            if isinstance(message, Hello | LighthouseView) and self._epochs.is_outranked_by(
                message
            ):
                return False
            if self._poison is not None and same_input(message, self._poison):
                log.warning("skipped the input at which the last Weaver failed: %s", message)
                if isinstance(message, Tick):  # all are alike, and without ticks nothing goes on
                    self._poison = None
                return True
            if isinstance(message, Hello) and not self._admission.expects(message):
                return True
            outputs = self._kernel.step(message, ts_ns)
            self._trajectory.event(message, ts_ns, outputs)
            self.watchers.took(message, outputs, ts_ns)
            if isinstance(message, Request):
                self._bus.publish("request", message)
            if isinstance(message, Hello):
                self._clocks.take(message, ts_ns)
                self._courier.reached(message.worker, message.incarnation)
            if outputs:
                self._post(outputs)
        except TorchloomError as error:
            self._end(error)
            return False
        except Exception as error:  # noqa: BLE001 - the kernel's state may be inconsistent
            self._fail(message, ts_ns, error)
        return True

    def enter(self, message: Input) -> None:
        """Feed an input of the Weaver's own, stamped now."""
        self.receive(message, self._clock.now_ns())

    def _fail(self, message: Telemetry | Input, ts_ns: int, error: Exception) -> None:
        """End this Weaver: its memory may be inconsistent, its stored state is not."""
        place = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {error}"
        kind = type(message).__name__
        if not isinstance(message, Telemetry):
            failed = InputFailed(error=reason, trace="".join(traceback.format_exception(error)))
            self._trajectory.event(message, ts_ns, [failed])
            self._trajectory.flush()
        source = f" of {message.worker}" if hasattr(message, "worker") else ""
        self._end(
            KernelFailure(
                f"{self._trajectory.folder}: input {self._kernel.seq}, {kind}{source}: {reason} "
                f"({Path(place.filename).name}:{place.lineno}); the next Weaver skips this input"
            )
        )

    def _post(self, outputs: Sequence[Output]) -> None:
        # Recorded before it is sent: no action is missing from the trajectory.
        if not all(isinstance(one, RECORDED_HERE) for one in outputs):
            self._trajectory.flush()
        kernel = self._kernel
        self._effectors.post(outputs, kernel.changes(), kernel.seq, kernel.run.now_ns)
        for output in outputs:
            log_output(output, self._limited_log)
            match output:
                case Reply():
                    self.operator_service.reply(output)
                case PauseChanged():
                    self._publish_pause(output.role or "", output.over)
                case ForecastWanted():
                    self._forecasts.begin(output)

    def _publish_pause(self, role: str = "", over: str = "") -> None:
        pause = self._kernel.run.pauses.of[role]
        self._bus.publish_pause(pause.state(self._config.run.name, self._epoch, over))

    # --- the loop ---

    async def start(self, recovered: Recovered, poison: Recorded | None = None) -> None:
        """Take over the last Weaver's state but for the input ``poison``; then accept requests."""
        self._poison = poison
        self.enter(recovered)
        control = recovered.control
        if control != Control():
            text = "epoch %d; took over %d commands in flight from the last Weaver"
            log.info(text, self._epoch, len(control.flights))
        if self._bus.reports.others_there:
            log.warning("another Weaver of this run is connected: taking over, the other one ends")
        quarantined = (f"quarantined: {failure.detail}" for failure in self._plugins.failed)
        for warning in (*quarantined, *self._plugins.warnings):
            log.warning("%s", warning)
        if self._over.done():
            self._over.result()
        self._reports.begin()
        await self._outbox.store()
        await self._bus.state.take_over()
        await self._bus.open(self.receive, self.floods.dropped, self._durable)
        await self._bus.serve(self.operator_service.verbs)
        await self._bus.on_epoch(self._superseded)
        await self._bus.roll_call(self._epoch)
        self._publish_pause()  # none: workers that an earlier Weaver paused resume

    async def _durable(self) -> None:
        """Wait until what came of the inputs so far outlives this host: record and state."""
        self._trajectory.flush_events()
        await self._bus.recorded()
        await self._outbox.settled()

    async def admit_workers(self, enrolment: Enrolment | None) -> None:
        """Answer join requests; with an embedded broker the answer has credentials."""
        self._admission.enrolment = enrolment
        await self._bus.serve_join(self._admission.answer, self._report, self._config.join.per_s)

    def training_replicas(self) -> set[str]:
        """Return the replica groups that train, by their names at the lighthouse."""
        return self._kernel.training_replicas()

    async def run(self, stop: asyncio.Event) -> None:
        """Tick until ``stop`` is set, or raise the TorchloomError that ends this Weaver."""
        sending = asyncio.create_task(self._effectors.run())
        ticking = asyncio.create_task(self._tick_forever())
        repeating = asyncio.create_task(self._repeat_pause())
        thinning = asyncio.create_task(self._retention.run())
        stopping = asyncio.create_task(stop.wait())
        losing = asyncio.create_task(self._bus.lease.lost())
        try:
            ends: set[asyncio.Future[Any]]
            ends = {sending, ticking, repeating, stopping, losing, self._over}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in (self._over, losing, ticking, repeating, sending):
                if end.done():
                    end.result()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._effectors.drained(), _GOODBYE_S)
        finally:
            self._forecasts.cancel()
            self._kernel.run.pauses.end("the Weaver ended")
            self._publish_pause()
            await end_all(sending, ticking, repeating, stopping, losing, thinning)

    async def _tick_forever(self) -> None:
        loop = asyncio.get_running_loop()
        tick_s = self._config.weaver.tick_s
        due = loop.time() + tick_s
        while True:
            await asyncio.sleep(max(0.0, due - loop.time()))
            begin = loop.time()
            await self._reports.check()
            if self._bus.lease.is_sure:  # one that was frozen knows nothing of the last seconds
                self.enter(Tick())
            self._outbox.call(self._kernel.fleet.strangers.to_call(self._kernel.run.now_ns))
            self._trajectory.flush()
            self.watchers.ticked(begin - due, loop.time() - begin)
            self._check_recording()
            self._clocks.check_own(self._clock.wall_ahead_s())
            self._forget_long_gone()
            due = max(due + tick_s, loop.time())

    def _forget_long_gone(self) -> None:
        gone, self._kernel.fleet.long_gone = self._kernel.fleet.long_gone, []
        for worker in gone:
            self._bus.forget(worker)
            self._clocks.forget(worker)

    def _check_recording(self) -> None:
        news = self._recording.check()
        if isinstance(news, RecordingGap):
            self.enter(news)
            news = None
        floods = self.floods.check(asyncio.get_running_loop().time())
        for notice in (*filter(None, (news,)), *self._retention.take_news(), *floods):
            if self._recording.trouble:  # the record takes none
                self._report(notice)
            else:
                self.enter(Noticed(kind=notice.kind, text=notice.text, worker=notice.worker))

    def _report(self, notice: Notice) -> None:
        log_output(notice, self._limited_log)
        self._bus.publish("notice", notice)

    async def _repeat_pause(self) -> None:
        while True:
            await asyncio.sleep(_PAUSE_EVERY_S)
            for role in self._kernel.run.pauses.in_force:
                self._publish_pause(role)

    def _superseded(self, epoch: int) -> None:
        if epoch > self._epoch:
            run = self._config.run.name
            self._end(SupersededError(f"another Weaver took over run {run} under epoch {epoch}"))

    def _end(self, error: TorchloomError) -> None:
        self._bus.shut()
        if not self._over.done():
            self._over.set_exception(error)

    @property
    def seen(self) -> Seen:
        """What metrics read."""
        return Seen(
            self._config,
            self._plugins,
            self._kernel,
            self._clock.now_ns,
            lambda: self._bus.malformed,
            lambda: self._recording.trouble,
            lambda: self._bus.state.waits_for_space,
            self._effectors.waiting,
        )

    def status(self, page: Page) -> Status:
        """Return a page of the run's status."""
        return describe(
            self._kernel,
            self._config,
            self._plugins,
            now_ns=self._clock.now_ns(),
            malformed=self._bus.malformed,
            log=str(self._trajectory.folder),
            recording=self._recording.trouble,
            broker_full=self._bus.state.waits_for_space,
            leader=str(self._bus.owner.own or ""),
            standbys=tuple(map(str, self._bus.standbys.present)),
            page=page,
        )
