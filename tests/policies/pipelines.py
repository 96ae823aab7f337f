"""Views with a pipeline, for the policy that decides on its planned changes."""

from tests.kernel.programs import OFFER, outlook
from torchloom_core.plugin import Forecast, SplitProgram
from torchloom_core.testing import view_of
from torchloom_core.wire.programs import GenerationSeen

START_S = 1_700_000_000.0
WORKERS = ("w0", "w1", "w2", "w3", "w4")


def offered(after_s, losses=0, since_s=0.0, offer=OFFER, **fields):
    """Return a view in which a change is offered since ``since_s``, after some losses."""
    lost = GenerationSeen(number=1, began_ns=1, cause="w9 has ended", took_s=0.5)
    program = SplitProgram(
        "trainer",
        outlook(offer=offer, **fields),
        since_ns=round(START_S * 1e9),
        offered_ns=round((START_S + since_s) * 1e9) if offer else 0,
        generations=(lost,) * losses,
    )
    return view_of(
        workers=[f"{name}-0" for name in WORKERS],
        group=WORKERS,
        now_s=START_S + after_s,
        programs=[program],
        predictors=["trend"],
    )


def at_risk(probability, worker="w1-0", **fields):
    """Return a view in which a worker of the pipeline may fail."""
    view = offered(100.0, offer=None, **fields)
    forecast = Forecast(id="f1", predictor="trend", horizon_s=60.0, hazard={worker: probability})
    other = view_of(
        workers=view.workers,
        group=WORKERS,
        node=["n0", "n1", "n2", "n3", "n4"],
        now_s=view.now_s,
        programs=list(view.programs.values()),
        forecasts=[forecast],
    )
    return other
