"""Predict failures by threshold rules, each with its precision on a trace."""

import operator
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchloom_core.lab.learning import in_words, json_part
from torchloom_core.plugin import (
    Example,
    FleetView,
    Floats,
    Hazard,
    ModelError,
    Need,
    NotNegative,
    PluginError,
    Positive,
    Registry,
    Share,
    hookimpl,
)

_COMPARE = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}

_PRIOR_MATCHES = 10.0
"""Weight of the prevalence, in matches of a rule."""

_ENOUGH = 0.5
"""Least share of samples to decide on a condition over time."""

_CARD = "threshold_rules.json"


class Condition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One comparison, ``[[predictors.threshold_rules.rules.when]]``."""

    metric: Annotated[str, msgspec.Meta(min_length=1)]
    """The metric to compare."""
    of: Literal["value", "rise", "age"] = "value"
    """Its value; its rise over ``over_s``; or seconds since its last sample."""
    comparison: Literal[">", ">=", "<", "<="] = ">"
    """The operator."""
    level: float = 0.0
    """The threshold, in the metric's unit, or seconds for an age."""
    over_s: NotNegative = 0.0
    """For a value, how long the condition has to be true, seconds; for a rise, its time span."""

    def __post_init__(self) -> None:
        if self.of == "rise" and not self.over_s:
            raise ValueError(f"{self.metric}: need over_s > 0 for a rise, was 0")
        if self.of == "age" and self.over_s:
            raise ValueError(f"{self.metric}: need no over_s for an age, was {self.over_s:g}")

    def __str__(self) -> str:
        what = self.metric if self.of == "value" else f"{self.of} of {self.metric}"
        over = f" over {in_words(self.over_s)}" if self.over_s else ""
        return f"{what} {self.comparison} {self.level:g}{over}"


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conditions that must all be true, ``[[predictors.threshold_rules.rules]]``.

    ``probability`` is that of a failure within ``horizon_s`` if they are true, before fitting.
    """

    when: Annotated[tuple[Condition, ...], msgspec.Meta(min_length=1)]
    probability: Share = 0.1

    def __str__(self) -> str:
        return " and ".join(map(str, self.when))


_XID = Rule(when=(Condition(metric="gpu_xid_total", of="rise", over_s=600.0),))
_ECC = Rule(when=(Condition(metric="gpu_ecc_uncorrected_total", of="rise", over_s=3600.0),))


class Learned(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fitted probabilities of the rules, and ``otherwise`` if no rule matches."""

    rules: tuple[str, ...]
    probabilities: tuple[Share, ...]
    otherwise: Share


class ThresholdRulesPredictor:
    """Use the highest probability of the rules that match a worker.

    Before fitting, probabilities are those of the options, and 0 if no rule matches. ``fit``
    estimates them: of n moments that match a rule, k were followed by a failure; with the
    prevalence p,

        probability = (k + 10 p) / (n + 10)

    which is Laplace's estimate with the prior at p (Cestnik, "Estimating probabilities: a
    crucial task in machine learning", ECAI 1990). Rules are not combined: a combination that
    matters needs a rule of its own.
    """

    name = "threshold_rules"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[predictors.threshold_rules]``."""

        rules: Annotated[tuple[Rule, ...], msgspec.Meta(min_length=1)] = (_XID, _ECC)
        """The rules; the defaults are for NVIDIA GPUs."""
        horizon_s: Positive = 3600.0
        every_s: Positive = 60.0

    def __init__(self, options: Options) -> None:
        self._rules = options.rules
        self._probabilities = np.array([rule.probability for rule in options.rules])
        self._otherwise = 0.0
        self.horizon_s = options.horizon_s
        self.every_s = options.every_s
        conditions = [condition for rule in options.rules for condition in rule.when]
        self.needs = tuple(Need(condition.metric, condition.over_s) for condition in conditions)

    def forecast(self, view: FleetView) -> Hazard:
        """Return ``(workers,)`` probabilities, NaN if no rule can be decided."""
        holds, known = self._judge(view)
        matched = np.where(holds, self._probabilities, -1.0)
        best = matched.argmax(axis=1)
        probability = np.where(holds.any(axis=1), matched.max(axis=1), self._otherwise)
        probability[~known.any(axis=1)] = np.nan
        why = {
            row: str(self._rules[best[row]]) for row in np.flatnonzero(holds.any(axis=1)).tolist()
        }
        return Hazard(probability=probability, why=why)

    def _judge(self, view: FleetView) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return ``(workers, rules)``: whether each matches, and whether that is known."""
        holds = np.ones((len(view), len(self._rules)), dtype=bool)
        known = np.ones_like(holds)
        for column, rule in enumerate(self._rules):
            for condition in rule.when:
                compared = _compared(view, condition)
                known[:, column] &= ~np.isnan(compared)
                holds[:, column] &= _COMPARE[condition.comparison](compared, condition.level)
        return holds, known

    def fit(self, examples: Iterable[Example]) -> None:
        """Measure the precision of each rule, and the failure rate without a match."""
        moments = np.zeros(len(self._rules) + 2)
        failures = np.zeros_like(moments)
        for example in examples:
            holds, known = self._judge(example.view)
            quiet = known.any(axis=1) & ~holds.any(axis=1)
            columns = np.column_stack([holds, quiet, np.ones(len(holds), dtype=bool)])
            moments += columns[~np.isnan(example.outcome)].sum(axis=0)
            failures += columns[example.outcome == 1.0].sum(axis=0)
        if not failures[-1]:
            raise PluginError(
                f"{self.name}: need a failure to learn from, was none in {moments[-1]:.0f} "
                "labelled moments of workers"
            )
        prior = failures[-1] / moments[-1]
        share = (failures + _PRIOR_MATCHES * prior) / (moments + _PRIOR_MATCHES)
        self._probabilities, self._otherwise = share[:-2], float(share[-2])

    def parts(self) -> Mapping[str, bytes]:
        """Return the fitted probabilities, as JSON."""
        learned = Learned(
            rules=tuple(map(str, self._rules)),
            probabilities=tuple(self._probabilities.tolist()),
            otherwise=self._otherwise,
        )
        return {_CARD: msgspec.json.encode(learned)}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Restore the part; ModelError if it is damaged, or has other rules."""
        learned = json_part(parts, _CARD, Learned)
        rules = tuple(map(str, self._rules))
        if learned.rules != rules or len(learned.probabilities) != len(rules):
            raise ModelError(
                f"{_CARD}: need the rules of the options, {'; '.join(rules)}, was "
                f"{'; '.join(learned.rules)}"
            )
        self._probabilities = np.array(learned.probabilities)
        self._otherwise = learned.otherwise


def _compared(view: FleetView, condition: Condition) -> Floats:
    """Return ``(workers,)`` values to compare with the level, NaN where unknown."""
    if condition.of == "age":
        return view.age_s(condition.metric)
    if condition.of == "value" and not condition.over_s:
        return view.latest(condition.metric)
    past = view.window(condition.metric, condition.over_s)
    seen = ~np.isnan(past)
    if condition.of == "value":
        highest = np.where(seen, past, -np.inf).max(axis=1)
        lowest = np.where(seen, past, np.inf).min(axis=1)
        extreme = lowest if condition.comparison.startswith(">") else highest
        return np.where(seen.mean(axis=1) >= _ENOUGH, extreme, np.nan)
    rows = np.arange(len(past))
    first = past[rows, seen.argmax(axis=1)]
    last = past[rows, past.shape[1] - 1 - seen[:, ::-1].argmax(axis=1)]
    with np.errstate(over="ignore", invalid="ignore"):
        rise = last - first
    return np.where(seen.sum(axis=1) >= 2, rise, np.nan)


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Register the predictor."""
    registry.predictor(ThresholdRulesPredictor)
