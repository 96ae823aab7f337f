"""Run coroutines side by side until one of them has ended, and end tasks for sure."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_PATIENCE_S = 0.5

_T = TypeVar("_T")


async def first_done(*running: Coroutine[Any, Any, _T]) -> _T:
    """Return or raise what the first to end does, of several the first argument; cancel the rest.

    Examples
    --------
    >>> asyncio.run(first_done(asyncio.sleep(60.0, "late"), asyncio.sleep(0.0, "soon")))
    'soon'
    """
    tasks = [asyncio.create_task(one) for one in running]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task.result() for task in tasks if task.done())
    finally:
        await end_all(*tasks)


async def end_all(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks until all have ended, whatever they raise.

    A task may swallow one cancellation: ``asyncio.wait_for`` of Python 3.11 does if what it waits
    for is done in the same moment, and nats-py uses it everywhere.
    """
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=_PATIENCE_S)
    await asyncio.gather(*tasks, return_exceptions=True)
