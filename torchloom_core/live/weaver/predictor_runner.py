"""Run predictors off the event loop, and pass their answers to the kernel."""

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial

from torchloom_core.interface.api import Predictor
from torchloom_core.interface.forecasting import run_predictor
from torchloom_core.interface.view import FleetView
from torchloom_core.live.weaver.own_thread import in_own_thread
from torchloom_core.wire.decisions import ForecastWanted
from torchloom_core.wire.events import Forecast, PredictorFailed

_PATIENCE_S = 60.0


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
