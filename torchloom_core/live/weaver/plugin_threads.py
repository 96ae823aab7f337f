"""Run plugin code off the event loop: each call in a thread of its own, which may hang."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from torchloom_core.interface.api import Predictor
from torchloom_core.interface.forecasting import run_predictor
from torchloom_core.interface.view import FleetView
from torchloom_core.wire.decisions import ForecastWanted
from torchloom_core.wire.events import Forecast, PredictorFailed

_T = TypeVar("_T")

_PATIENCE_S = 60.0


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


class PredictorRunner:
    """The forecasts in progress, each in a thread; a ``view`` is not modified later."""

    def __init__(
        self,
        predictors: Mapping[str, Predictor],
        view: Callable[[str], FleetView],
        enter: Callable[[Forecast | PredictorFailed], None],
    ) -> None:
        self._predictors = predictors
        self._view = view
        self._enter = enter
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, wanted: ForecastWanted) -> None:
        """Run a predictor."""
        task = asyncio.create_task(self._run(wanted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """Wait for no forecast any more."""
        for task in self._tasks:
            task.cancel()

    async def _run(self, wanted: ForecastWanted) -> None:
        name, predictor = wanted.predictor, self._predictors[wanted.predictor]
        patience_s = max(_PATIENCE_S, predictor.every_s)
        start = time.perf_counter()
        call = partial(
            run_predictor,
            wanted.id,
            name,
            predictor,
            self._view(name),
            lambda: time.perf_counter() - start,
        )
        answer: Forecast | PredictorFailed
        try:
            answer = await in_own_thread(f"predictor-{name}", call, patience_s)
        except TimeoutError:  # its thread is abandoned
            detail = f"took more than {patience_s:g} s"
            answer = PredictorFailed(predictor=name, rule="hung", detail=detail)
        self._enter(answer)
