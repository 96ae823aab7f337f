"""Waits for conditions, up to one deadline."""

import asyncio
import inspect
import logging
import threading
import time

from tests.deadlines import DEADLINE_S

POLL_S = 0.05


def until(what):
    """Return ``what()`` once it is true; polls, such as for another process's files."""
    end = time.monotonic() + DEADLINE_S
    while not (found := what()):
        assert time.monotonic() < end, f"not true after {DEADLINE_S:g} s"
        time.sleep(POLL_S)
    return found


async def eventually(what):
    """Do the same in a test on a loop; ``what`` may be a coroutine function."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            found = what()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(POLL_S)


async def soon(awaitable):
    """Return the result of ``awaitable``."""
    async with asyncio.timeout(DEADLINE_S):
        return await awaitable


class News:
    """Something that changes in a test on a loop, and a way to wait for a change."""

    def __init__(self):
        self._news = asyncio.Event()

    async def until(self, condition):
        """Wait until ``condition()`` is true; it is looked at again when ``_news`` is set."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self._news.clear()
                await self._news.wait()


class Logged(logging.Handler):
    """The lines that were logged, and a way to wait for more."""

    def __init__(self):
        super().__init__()
        self.lines = []
        self._news = threading.Condition()

    def emit(self, record):
        with self._news:
            self.lines.append(record.getMessage())
            self._news.notify_all()

    def until(self, what):
        """Wait until ``what(lines)`` is true."""
        with self._news:
            assert self._news.wait_for(lambda: what(self.lines), DEADLINE_S), self.lines
        return self.lines

    async def eventually(self, what):
        """Do the same in a test on a loop."""
        return await asyncio.to_thread(self.until, what)
