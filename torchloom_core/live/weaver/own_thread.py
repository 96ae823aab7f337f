"""Run plugin code off the event loop, each call in a thread of its own, which may hang."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

_T = TypeVar("_T")


async def in_own_thread(name: str, call: Callable[[], _T], patience_s: float) -> _T:
    """Return what ``call`` returns, or raise what it raises.

    TimeoutError after ``patience_s``; the thread is then abandoned.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()

    def finish(result: _T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)  # type: ignore[arg-type]
        else:
            done.set_exception(error)

    def work() -> None:
        outcome: tuple[_T | None, BaseException | None]
        try:
            outcome = call(), None
        except BaseException as error:  # noqa: BLE001 - foreign code, which may call sys.exit
            outcome = None, error
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(finish, *outcome)

    threading.Thread(target=work, name=name, daemon=True).start()
    return await asyncio.wait_for(done, patience_s)
