"""Call one predictor and contain its errors; used by the Weaver and by backtests."""

from collections.abc import Callable

import numpy as np

from torchloom_core.interface.api import Hazard, Predictor
from torchloom_core.interface.contract import GarbageError, checked_hazard
from torchloom_core.interface.foreign import home_of, raised_in
from torchloom_core.interface.needs import labels_read
from torchloom_core.interface.view import FleetView
from torchloom_core.wire.events import Forecast, PredictorFailed


def run_predictor(
    forecast_id: str,
    name: str,
    predictor: Predictor,
    view: FleetView,
    elapsed_s: Callable[[], float],
) -> Forecast | PredictorFailed:
    """Run one predictor on one view, and return its checked answer by worker."""
    hazard = call_predictor(name, predictor, view)
    if isinstance(hazard, PredictorFailed):
        return hazard
    judged = np.flatnonzero(~np.isnan(hazard.probability))
    probability = hazard.probability[judged].tolist()
    return Forecast(
        id=forecast_id,
        predictor=name,
        horizon_s=float(predictor.horizon_s),
        hazard=dict(zip((view.workers[row] for row in judged.tolist()), probability, strict=True)),
        why={view.workers[row]: text for row, text in hazard.why.items()},
        latency_s=elapsed_s(),
    )


def call_predictor(
    name: str, predictor: Predictor, view: FleetView, *, reasons: bool = True
) -> Hazard | PredictorFailed:
    """Call one predictor with one view, with or without ``reasons``, and check its answer.

    The view has only the labels that it has declared.
    """
    try:
        shown = view.with_labels(labels_read(predictor.needs))
        return checked_hazard(predictor, shown, reasons=reasons)
    except KeyboardInterrupt:
        raise
    except GarbageError as error:
        detail = f"{error} ({home_of(predictor, 'forecast')})"
        return PredictorFailed(predictor=name, rule="garbage", detail=detail)
    except BaseException as error:  # noqa: BLE001 - foreign code, which may call sys.exit
        detail = raised_in(error, predictor, "forecast")
        return PredictorFailed(predictor=name, rule="raised", detail=detail)
