"""The other end of a bare NATS request: echoes it at once.

``python echo.py URL CREDS SUBJECT`` prints one line of JSON when it is ready.
"""

import asyncio
import sys

import nats
from nats.aio.msg import Msg
from scene import report


async def main() -> None:
    """Answer until killed."""
    url, creds, subject = sys.argv[1:]
    client = await nats.connect(url, user_credentials=creds)

    async def answer(msg: Msg) -> None:
        await msg.respond(msg.data)

    await client.subscribe(subject, cb=answer)
    await client.flush()
    report(ready=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
