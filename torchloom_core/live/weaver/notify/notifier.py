"""Send the Weaver's alarms by the channels of ``[notify.<name>]``, apart from its loop.

A notification is no effector: an effector gets each event once, in order; a person gets one
message for many events of one cause, at a bounded rate. Both report their results to the record.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

from torchloom_core.config import notify
from torchloom_core.floor.errors import ConfigError
from torchloom_core.floor.first_done import end_all
from torchloom_core.floor.plain_text import plain_line
from torchloom_core.interface.foreign import one_line
from torchloom_core.live.weaver.notify.alarms import Alarm, alarms_of
from torchloom_core.live.weaver.notify.channel import Channel, SendError
from torchloom_core.live.weaver.notify.grouping import Groups, Message
from torchloom_core.live.weaver.notify.mail import MailChannel
from torchloom_core.live.weaver.notify.slack import SlackChannel
from torchloom_core.live.weaver.notify.webhook import WebhookChannel
from torchloom_core.live.weaver.plugin_threads import in_own_thread
from torchloom_core.live.weaver.watchers import Watchers
from torchloom_core.wire.decisions import Output
from torchloom_core.wire.events import DeliveryResult, DeliveryStatus, Input

_LOOK_EVERY_S = 0.5
_ATTEMPT_S = 30.0
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_PATIENCE_S = 3600.0
_GOODBYE_S = 3.0


def channel_of(settings: notify.Channel) -> Channel:
    """Return the channel for a table."""
    match settings:
        case notify.Webhook():
            return WebhookChannel(settings)
        case notify.Slack():
            return SlackChannel(settings)
        case notify.Mail():
            return MailChannel(settings)


class Notifier:
    """One channel's alarms, grouped, and the task that sends them one message at a time.

    While a message is tried again, later alarms are grouped by cause, so that what waits is
    bounded.
    """

    def __init__(
        self,
        name: str,
        channel: Channel,
        groups: Groups,
        now_s: Callable[[], float],
        report: Callable[[DeliveryStatus], None],
    ) -> None:
        self._name = f"notify.{name}"
        self._channel = channel
        self._groups = groups
        self._now_s = now_s
        self._report_status = report

    def took(self, message: Input, outputs: Sequence[Output], ts_ns: int) -> None:
        """Take the alarms of an input; see Watcher."""
        for alarm in alarms_of(message, outputs):
            self.take(alarm)

    def ticked(self, late_s: float, took_s: float) -> None:
        """Ignore the times of a tick."""

    def take(self, alarm: Alarm) -> None:
        """Add an alarm."""
        self._groups.take(alarm, self._now_s())

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            message = self._groups.next_due(self._now_s())
            if message is None:
                await asyncio.sleep(_LOOK_EVERY_S)
            else:
                await self._deliver(message)

    async def finish(self) -> None:
        """Send what still waits, with one attempt each and for a short time."""
        while (message := self._groups.next_due(self._now_s(), at_end=True)) is not None:
            await in_own_thread(self._name, partial(self._channel.send, message), _GOODBYE_S)

    async def _deliver(self, message: Message) -> None:
        pause_s, begin_s = _FIRST_PAUSE_S, self._now_s()
        while True:
            try:
                call = partial(self._channel.send, message)
                done = await in_own_thread(self._name, call, _ATTEMPT_S)
                return self._report(message, "delivered", done)
            except (SendError, ConfigError) as error:
                return self._report(message, "given_up", str(error))
            except TimeoutError:
                why = f"took more than {_ATTEMPT_S:g} s"
            except OSError as error:
                why = str(error)
            except Exception as error:  # noqa: BLE001 - it must not end the others' messages
                return self._report(message, "given_up", one_line(error))
            if self._now_s() + pause_s > begin_s + _PATIENCE_S:
                return self._report(message, "given_up", why)
            if pause_s == _FIRST_PAUSE_S:
                self._report(message, "retrying", why)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _report(self, message: Message, result: DeliveryResult, detail: str) -> None:
        text = plain_line(f"{message.cause}, {message.count}: {detail}")
        status = DeliveryStatus(
            effector=self._name, delivery=message.id, result=result, detail=text
        )
        self._report_status(status)


@asynccontextmanager
async def notifying(
    channels: Mapping[str, notify.Channel],
    run: str,
    epoch: int,
    watchers: Watchers,
    recording: Callable[[], str],
    now_s: Callable[[], float],
    report: Callable[[DeliveryStatus], None],
    first: Sequence[Alarm] = (),
) -> AsyncIterator[None]:
    """Send the alarms of one Weaver; ``recording()`` is why it does not record, or empty."""
    notifiers = [
        Notifier(name, channel_of(own), Groups(own, run, f"n{epoch}.{name}"), now_s, report)
        for name, own in channels.items()
    ]
    for notifier in notifiers:
        watchers.add(notifier)
        for alarm in first:
            notifier.take(alarm)
    tasks = [asyncio.create_task(notifier.run()) for notifier in notifiers]
    if notifiers:
        tasks.append(asyncio.create_task(_watch_recording(notifiers, recording)))
    try:
        yield
    finally:
        await end_all(*tasks)
        with suppress(TimeoutError):
            ends = asyncio.gather(*(n.finish() for n in notifiers), return_exceptions=True)
            await asyncio.wait_for(ends, _GOODBYE_S)


async def _watch_recording(notifiers: Sequence[Notifier], recording: Callable[[], str]) -> None:
    was = ""
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        now = recording()
        if now and not was:
            for notifier in notifiers:
                notifier.take(Alarm("recording", "recording", f"recording {now}"))
        was = now
