"""Ask one predictor, whatever it does; the Weaver does so off its loop, a backtest in it."""

from collections.abc import Callable

import numpy as np

from torchloom_core.plugin.api import Hazard, Predictor
from torchloom_core.plugin.contract import GarbageError, checked_hazard
from torchloom_core.plugin.foreign import home_of, raised_in
from torchloom_core.plugin.needs import labels_read
from torchloom_core.plugin.view import FleetView
from torchloom_core.wire.events import Forecast, PredictorFailed


def run_predictor(
    forecast_id: str,
    name: str,
    predictor: Predictor,
    view: FleetView,
    elapsed_s: Callable[[], float],
) -> Forecast | PredictorFailed:
    """Run one predictor on one view, check what it returns, and say of whom it is."""
    hazard = ask_predictor(name, predictor, view)
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


def ask_predictor(
    name: str, predictor: Predictor, view: FleetView, *, reasons: bool = True
) -> Hazard | PredictorFailed:
    """Ask one predictor of one view, with ``reasons`` or without, and check what it returns.

    Of the labels it is shown those that it has declared.
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
