"""Run predictors off the event loop, each call in a thread of its own, which may hang."""

import asyncio
import threading
import time
from contextlib import suppress

from torchloom_core.interface.api import Predictor
from torchloom_core.interface.forecasting import run_predictor
from torchloom_core.interface.view import FleetView
from torchloom_core.wire.events import Forecast, PredictorFailed


async def forecast(
    forecast_id: str, name: str, predictor: Predictor, view: FleetView, patience_s: float
) -> Forecast | PredictorFailed:
    """Return the predictor's forecast for ``view``, or why there is none.

    A call that takes more than ``patience_s`` is abandoned, and so is its thread.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Forecast | PredictorFailed] = loop.create_future()
    start = time.perf_counter()

    def work() -> None:
        result = run_predictor(
            forecast_id, name, predictor, view, lambda: time.perf_counter() - start
        )
        with suppress(RuntimeError):  # the loop was closed while the predictor ran
            loop.call_soon_threadsafe(finish, result)

    def finish(result: Forecast | PredictorFailed) -> None:
        if not done.done():
            done.set_result(result)

    threading.Thread(target=work, name=f"predictor-{name}", daemon=True).start()
    try:
        return await asyncio.wait_for(done, patience_s)
    except TimeoutError:
        detail = f"took more than {patience_s:g} s"
        return PredictorFailed(predictor=name, rule="hung", detail=detail)
