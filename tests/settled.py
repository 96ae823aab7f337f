"""A wait for the server that nats-py's own flush is not."""

DEADLINE_S = 60


async def settle(client):
    """Wait until the server has handled what was sent; a first PING overtakes the buffer."""
    await client.flush(DEADLINE_S)
    await client.flush(DEADLINE_S)
