"""Judge a worker by rules of your own, each with the precision it had on what was recorded."""

import operator
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchloom_core.learning import in_words, json_part
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
"""So many matches the share of all moments that a failure followed is worth."""

_ENOUGH = 0.5
"""The share of samples without which nobody knows whether a value was held."""

_CARD = "threshold_rules.json"


class Condition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One comparison, ``[[predictors.threshold_rules.rules.when]]``.

    Attributes
    ----------
    metric : str
        What is compared.
    of : "value", "rise" or "age"
        Its value; how much higher it is than ``over_s`` ago; or seconds since the last sample.
    comparison : ">", ">=", "<" or "<="
        How.
    level : float
        With what, in the metric's unit, or seconds for the age.
    over_s : float
        For a value, how long it must have been so, seconds, 0: now. For a rise, since when.
    """

    metric: Annotated[str, msgspec.Meta(min_length=1)]
    of: Literal["value", "rise", "age"] = "value"
    comparison: Literal[">", ">=", "<", "<="] = ">"
    level: float = 0.0
    over_s: NotNegative = 0.0

    def __post_init__(self) -> None:
        if self.of == "rise" and not self.over_s:
            raise ValueError(f"{self.metric}: need over_s > 0 for a rise, was 0")
        if self.of == "age" and self.over_s:
            raise ValueError(f"{self.metric}: need no over_s for an age, was {self.over_s:g}")

    def __str__(self) -> str:
        what = {
            "value": self.metric,
            "rise": f"rise of {self.metric}",
            "age": f"age of {self.metric}",
        }
        over = f" over {in_words(self.over_s)}" if self.over_s else ""
        return f"{what[self.of]} {self.comparison} {self.level:g}{over}"


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conditions that must all hold, ``[[predictors.threshold_rules.rules]]``.

    Attributes
    ----------
    when : tuple of Condition
        The conditions.
    probability : float
        Of a failure within ``horizon_s`` if they hold, before it is measured.
    """

    when: Annotated[tuple[Condition, ...], msgspec.Meta(min_length=1)]
    probability: Share = 0.1

    def __str__(self) -> str:
        return " and ".join(map(str, self.when))


_XID = Rule(when=(Condition(metric="gpu_xid_total", of="rise", over_s=600.0),))
_ECC = Rule(when=(Condition(metric="gpu_ecc_uncorrected_total", of="rise", over_s=3600.0),))


class Learned(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was measured.

    Attributes
    ----------
    rules : tuple of str
        The rules, in words.
    probabilities : tuple of float
        Of a failure when the rule holds.
    otherwise : float
        Of a failure when no rule holds.
    """

    rules: tuple[str, ...]
    probabilities: tuple[Share, ...]
    otherwise: Share


class ThresholdRulesPredictor:
    """Give a worker the highest probability of the rules that hold for it.

    Before it has learned, a rule's probability is the one in the options, and 0 where none
    holds. ``fit`` measures it: of the n moments in which the rule held, k were followed by a
    failure, and with the share p of all moments that were,

        probability = (k + 10 p) / (n + 10)

    which is Laplace's estimate with the prior at p (Cestnik, "Estimating probabilities: a
    crucial task in machine learning", ECAI 1990). No two rules are taken for independent: what
    should count more together is a rule of its own.
    """

    name = "threshold_rules"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[predictors.threshold_rules]``.

        Attributes
        ----------
        rules : tuple of Rule
            The rules; those of the default are for NVIDIA GPUs.
        horizon_s : float
            How far ahead the probability looks, seconds.
        every_s : float
            How often to forecast, seconds.
        """

        rules: Annotated[tuple[Rule, ...], msgspec.Meta(min_length=1)] = (_XID, _ECC)
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
        """Return ``(workers,)`` probabilities, NaN where nobody knows whether any rule holds."""
        holds, known = self._judge(view)
        said = np.where(holds, self._probabilities, -1.0)
        best = said.argmax(axis=1)
        probability = np.where(holds.any(axis=1), said.max(axis=1), self._otherwise)
        probability[~known.any(axis=1)] = np.nan
        why = {
            row: str(self._rules[best[row]]) for row in np.flatnonzero(holds.any(axis=1)).tolist()
        }
        return Hazard(probability=probability, why=why)

    def _judge(self, view: FleetView) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return ``(workers, rules)``: whether each holds, and whether that can be known."""
        holds = np.ones((len(view), len(self._rules)), dtype=bool)
        known = np.ones_like(holds)
        for column, rule in enumerate(self._rules):
            for condition in rule.when:
                compared = _compared(view, condition)
                known[:, column] &= ~np.isnan(compared)
                holds[:, column] &= _COMPARE[condition.comparison](compared, condition.level)
        return holds, known

    def fit(self, examples: Iterable[Example]) -> None:
        """Measure the precision of each rule, and how many fail for whom none holds."""
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
                "moments of workers"
            )
        prior = failures[-1] / moments[-1]
        share = (failures + _PRIOR_MATCHES * prior) / (moments + _PRIOR_MATCHES)
        self._probabilities, self._otherwise = share[:-2], float(share[-2])

    def parts(self) -> Mapping[str, bytes]:
        """Return what was measured, as JSON."""
        learned = Learned(
            rules=tuple(map(str, self._rules)),
            probabilities=tuple(self._probabilities.tolist()),
            otherwise=self._otherwise,
        )
        return {_CARD: msgspec.json.encode(learned)}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Become what :meth:`parts` was taken from.

        Raises
        ------
        ModelError
            If the part is missing or damaged, or was measured with other rules.
        """
        learned = json_part(parts, _CARD, Learned)
        rules = tuple(map(str, self._rules))
        if learned.rules != rules or len(learned.probabilities) != len(rules):
            raise ModelError(
                f"{_CARD}: need the options' rules, {'; '.join(rules)}, was "
                f"{'; '.join(learned.rules)}"
            )
        self._probabilities = np.array(learned.probabilities)
        self._otherwise = learned.otherwise


def _compared(view: FleetView, condition: Condition) -> Floats:
    """Return ``(workers,)``: what is to be compared with the level, NaN where unknown."""
    if condition.of == "age":
        return view.age_s(condition.metric)
    if condition.of == "value" and not condition.over_s:
        return view.latest(condition.metric)
    past = view.window(condition.metric, condition.over_s)
    seen = ~np.isnan(past)
    if condition.of == "value":
        highest = np.where(seen, past, -np.inf).max(axis=1)
        lowest = np.where(seen, past, np.inf).min(axis=1)
        held = lowest if condition.comparison.startswith(">") else highest
        return np.where(seen.mean(axis=1) >= _ENOUGH, held, np.nan)
    rows = np.arange(len(past))
    first = past[rows, seen.argmax(axis=1)]
    last = past[rows, past.shape[1] - 1 - seen[:, ::-1].argmax(axis=1)]
    with np.errstate(over="ignore", invalid="ignore"):
        rise = last - first
    return np.where(seen.sum(axis=1) >= 2, rise, np.nan)


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the predictor."""
    registry.predictor(ThresholdRulesPredictor)
