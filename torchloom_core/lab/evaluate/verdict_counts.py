"""Count the proposals and verdicts of a run, and average them over runs."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from torchloom_core.lab.evaluate.arm_results import Verdicts
from torchloom_core.live.kernel.actions.kinds import kind_of
from torchloom_core.wire.actions import name_of
from torchloom_core.wire.decisions import Verdict

_MOST_ALERTS = 5


class VerdictCounts:
    """Counts verdicts."""

    def __init__(self) -> None:
        self._granted: Counter[str] = Counter()
        self._denied: Counter[str] = Counter()
        self._why: dict[str, str] = {}
        self._cordons: Counter[str] = Counter()
        self._alerts: list[str] = []

    def enter(self, verdict: Verdict) -> None:
        """Count one verdict."""
        if not verdict.granted:
            self._denied[verdict.rule] += 1
            self._why.setdefault(verdict.rule, verdict.reason)
            return
        self._granted[name_of(verdict.action)] += 1
        kind = kind_of(verdict.action)
        self._cordons.update(kind.cordons(verdict.action))
        if text := kind.alert_text(verdict.action):
            self._alerts = _first((*self._alerts, text))

    def operations(self) -> Verdicts:
        """Return the counts."""
        return Verdicts(
            proposed=float(self._granted.total() + self._denied.total()),
            granted=_mean([self._granted]),
            denied=_mean([self._denied]),
            why_denied=dict(sorted(self._why.items())),
            cordons=_mean([self._cordons]),
            alerts=tuple(self._alerts),
        )


def mean_verdicts(runs: Sequence[Verdicts]) -> Verdicts:
    """Return the mean over runs, with the first reason of each rule."""
    why = {rule: reason for run in reversed(runs) for rule, reason in run.why_denied.items()}
    return Verdicts(
        proposed=sum(run.proposed for run in runs) / len(runs),
        granted=_mean([run.granted for run in runs]),
        denied=_mean([run.denied for run in runs]),
        why_denied=dict(sorted(why.items())),
        cordons=_mean([run.cordons for run in runs]),
        alerts=tuple(_first(text for run in runs for text in run.alerts)),
    )


def _first(alerts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(alerts))[:_MOST_ALERTS]


def _mean(counts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = sorted({name for count in counts for name in count})
    return {name: sum(count.get(name, 0.0) for count in counts) / len(counts) for name in names}
