"""Run coroutines side by side until one of them has ended."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

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
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
