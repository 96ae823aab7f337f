"""A wait for the server that nats-py's own flush is not."""

from tests.deadlines import DEADLINE_S


async def settle(client):
    """Wait until the server has handled all messages; a first PING overtakes the buffer."""
    await client.flush(DEADLINE_S)
    await client.flush(DEADLINE_S)
