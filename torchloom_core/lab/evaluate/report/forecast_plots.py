"""Plots of predictors: precision and recall, calibration, lead times, false alarms."""

from collections.abc import Sequence

from torchloom_core.lab.evaluate.report.figure import SERIES, canvas
from torchloom_core.lab.evaluate.report.wording import estimate
from torchloom_core.lab.learning.forecast_score import AlarmUnit, ForecastScore

_HOUR_S = 3600.0


def curve_plot(scores: Sequence[ForecastScore]) -> str:
    """Return the precision-recall curve of every predictor, and the prevalence."""
    with canvas(4.4, 3.2) as drawn:
        axes = drawn.axes
        for score, colour in zip(scores, SERIES * len(scores), strict=False):
            recall = [point.recall for point in score.curve]
            precision = [point.precision for point in score.curve]
            label = f"{score.predictor}, {estimate(score.auprc)}"
            axes.step(recall, precision, where="post", color=colour, lw=1.4, label=label)
        axes.axhline(scores[0].prevalence, color="#6e7781", lw=1, ls="--", label="prevalence")
        axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.02))
        axes.set_title("Precision and recall of samples, AUPRC")
        axes.legend(fontsize=8)
    return drawn.svg


def calibration_plot(scores: Sequence[ForecastScore]) -> str:
    """Return the observed frequency against the forecast probability."""
    with canvas(4.4, 3.2) as drawn:
        axes = drawn.axes
        top = max((max(b.forecast, b.observed) for s in scores for b in s.calibration), default=1.0)
        axes.plot([0, top], [0, top], color="#6e7781", lw=1, ls="--", label="perfect calibration")
        for score, colour in zip(scores, SERIES * len(scores), strict=False):
            forecast = [b.forecast for b in score.calibration]
            observed = [b.observed for b in score.calibration]
            axes.plot(forecast, observed, "o-", color=colour, ms=4, lw=1.2, label=score.predictor)
        axes.set(xlabel="forecast probability", ylabel="observed frequency")
        axes.set_title("Calibration")
        axes.legend(fontsize=8)
    return drawn.svg


def lead_plot(scores: Sequence[ForecastScore]) -> str:
    """Return the share of incidents found at least a given lead time ahead."""
    with canvas(4.4, 3.2) as drawn:
        axes = drawn.axes
        for score, colour in zip(scores, SERIES * len(scores), strict=False):
            leads = sorted(score.leads_s, reverse=True)
            share = [(number + 1) / max(score.incidents, 1) for number in range(len(leads))]
            hours = [lead / _HOUR_S for lead in leads]
            axes.step(hours, share, where="pre", color=colour, lw=1.4, label=score.predictor)
        axes.set(xlabel="lead time, hours", ylabel="share of incidents", ylim=(0, 1.02))
        axes.set_title("Incidents found at least this long ahead")
        axes.legend(fontsize=8)
    return drawn.svg


def false_alarm_plot(scores: Sequence[ForecastScore], unit: AlarmUnit) -> str:
    """Return recall of incidents against false alarms, one point per predictor."""
    with canvas(4.4, 3.2) as drawn:
        axes = drawn.axes
        for score, colour in zip(scores, SERIES * len(scores), strict=False):
            alarms, recall = unit.scaled(score.false_alarms_per_node_day), score.recall
            if alarms.low is not None and alarms.high is not None:
                axes.plot([alarms.low, alarms.high], [recall.value] * 2, color=colour, lw=1.2)
            if recall.low is not None and recall.high is not None:
                axes.plot([alarms.value] * 2, [recall.low, recall.high], color=colour, lw=1.2)
            axes.plot([alarms.value], [recall.value], "o", color=colour, label=score.predictor)
        axes.set(xlabel=f"false alarms {unit.text}", ylabel="recall of incidents", ylim=(0, 1.02))
        axes.set_xlim(left=0)
        axes.set_title("At the threshold")
        axes.legend(fontsize=8)
    return drawn.svg
