"""Run predictors off the event loop."""

import time
from functools import partial

from torchloom_core.interface.api import Predictor
from torchloom_core.interface.forecasting import run_predictor
from torchloom_core.interface.view import FleetView
from torchloom_core.live.weaver.own_thread import in_own_thread
from torchloom_core.wire.events import Forecast, PredictorFailed


async def forecast(
    forecast_id: str, name: str, predictor: Predictor, view: FleetView, patience_s: float
) -> Forecast | PredictorFailed:
    """Return the predictor's forecast for ``view``, or why there is none.

    A call that takes more than ``patience_s`` is abandoned, and so is its thread.
    """
    start = time.perf_counter()
    call = partial(
        run_predictor, forecast_id, name, predictor, view, lambda: time.perf_counter() - start
    )
    try:
        return await in_own_thread(f"predictor-{name}", call, patience_s)
    except TimeoutError:
        detail = f"took more than {patience_s:g} s"
        return PredictorFailed(predictor=name, rule="hung", detail=detail)
