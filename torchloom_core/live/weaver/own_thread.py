"""Run plugin code off the event loop, each call in a thread of its own, which may hang."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")


async def in_own_thread(name: str, call: Callable[[], _T], patience_s: float) -> _T:
    """Return or raise what ``call`` does; TimeoutError after ``patience_s``, without its thread."""
    done: Future[_T] = Future()
    done.set_running_or_notify_cancel()

    def work() -> None:
        try:
            done.set_result(call())
        except BaseException as error:  # noqa: BLE001 - foreign code, which may call sys.exit
            done.set_exception(error)

    threading.Thread(target=work, name=name, daemon=True).start()
    return await asyncio.wait_for(asyncio.wrap_future(done), patience_s)
