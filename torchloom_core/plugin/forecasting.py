"""Ask one predictor, whatever it does; the Weaver does so off its loop, a backtest in it."""

from collections.abc import Callable

from torchloom_core.plugin.api import Predictor
from torchloom_core.plugin.contract import (
    GarbageError,
    checked_hazard,
)
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
    *,
    reasons: bool = True,
) -> Forecast | PredictorFailed:
    """Run one predictor on one view and check what it returns, ``reasons`` or not.

    Of the labels it is shown those that it has declared.
    """
    try:
        shown = view.with_labels(labels_read(predictor.needs))
        hazard = checked_hazard(predictor, shown, reasons=reasons)
    except KeyboardInterrupt:
        raise
    except GarbageError as error:
        detail = f"{error} ({home_of(predictor, 'forecast')})"
        return PredictorFailed(predictor=name, rule="garbage", detail=detail)
    except BaseException as error:  # noqa: BLE001 - foreign code, which may call sys.exit
        detail = raised_in(error, predictor, "forecast")
        return PredictorFailed(predictor=name, rule="raised", detail=detail)
    return Forecast(
        id=forecast_id,
        predictor=name,
        horizon_s=float(predictor.horizon_s),
        hazard=hazard.probability,
        why={view.workers[row]: text for row, text in hazard.why.items()},
        latency_s=elapsed_s(),
    )
