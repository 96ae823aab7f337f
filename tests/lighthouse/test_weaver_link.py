"""A lighthouse survives a broker that ends at any moment."""

import asyncio

import nats.errors

from tests.waiting import eventually
from torchloom_core.floor.first_done import end_all
from torchloom_core.live.lighthouse import weaver_link
from torchloom_core.live.lighthouse.weaver_link import WeaverLink


async def test_a_connection_lost_before_its_first_message_is_made_again(monkeypatch):
    made = []

    class Lost:
        """A connection whose server has ended."""

        def __init__(self):
            self.client = self
            made.append(self)

        def on_reconnect(self, callback):
            pass

        async def subscribe(self, subject, cb):
            raise nats.errors.ConnectionClosedError

        async def close(self):
            pass

    async def open_lost(*_, **__):
        return Lost()

    monkeypatch.setattr(weaver_link.Connection, "open", open_lost)
    monkeypatch.setattr(weaver_link, "_RETRY_S", 0.01)
    made_link = WeaverLink(None, "run", "nats://nowhere", None, restored=False)
    link = asyncio.create_task(made_link.run())
    await eventually(lambda: len(made) > 2)
    assert not link.done()
    await end_all(link)
