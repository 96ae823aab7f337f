"""Learn from labelled rows of features, one a worker and moment; predictors of trees extend it."""

import math
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np

from torchloom_core.config.schema import NotNegative, Positive
from torchloom_core.errors import ModelError
from torchloom_core.learning.artifacts import estimator_bytes, estimator_part, json_part, part_of
from torchloom_core.learning.features import Features
from torchloom_core.learning.fit_size import FitSize
from torchloom_core.learning.gathered_learner import GatheredLearner
from torchloom_core.learning.reasons import Reasons
from torchloom_core.learning.rows import RowGathering, Rows
from torchloom_core.plugin.api import Hazard
from torchloom_core.plugin.arrays import Floats
from torchloom_core.plugin.view import FleetView


class RowOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the options of every such predictor hold; its own say what that means.

    Attributes
    ----------
    metrics : tuple of str
        What is looked at beside faults.
    spans_s : tuple of float
        Over how long each metric is summed up, seconds.
    attributes : tuple of str
        Numbers that do not change of a component, such as its size.
    groups : tuple of str
        What components have in common beside their rack, such as their model.
    half_lives_s : tuple of float
        Ages at which a fault counts half, seconds.
    seasons_s : tuple of float
        Periods, seconds: where in each a moment is; none: it is not looked at.
    incident_s : float
        Faults on one node closer together than this are one incident, seconds.
    max_healthy : int
        How many rows of workers that did not fail are kept to learn from.
    seed : int
        Of the sample, and of whatever the estimator draws.
    horizon_s, every_s : float
        How far ahead it looks and how often it is asked, seconds.

    Examples
    --------
    >>> from torchloom_core.learning import RowOptions
    >>> class Options(RowOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ...     trees: int = 200
    >>> options = Options(metrics=("gpu_temp_celsius",), trees=50)
    >>> options.horizon_s, options.trees
    (3600.0, 50)
    """

    metrics: tuple[str, ...] = ()
    spans_s: tuple[Positive, ...] = (600.0, 3600.0)
    attributes: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    half_lives_s: tuple[Positive, ...] = (86_400.0, 864_000.0, 8_640_000.0, 86_400_000.0)
    seasons_s: tuple[Positive, ...] = ()
    incident_s: NotNegative = 60.0
    max_healthy: Annotated[int, msgspec.Meta(ge=100)] = 100_000
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    horizon_s: Positive = 3600.0
    every_s: Positive = 60.0


class Learned(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was learned beside the estimator.

    Attributes
    ----------
    features : tuple of str
        Names of the columns that the options ask for.
    shown : tuple of int
        Places of those that the estimator was shown: the others did not tell rows apart.
    share : float
        How many of the healthy rows it was shown.
    prior : float
        How many of all rows failed.
    usual : tuple of (float or None)
        Median of each column that was shown over healthy rows, None where it is mostly unknown.
    """

    features: tuple[str, ...]
    shown: tuple[int, ...]
    share: float
    prior: float
    usual: tuple[float | None, ...]


class RowLearner(GatheredLearner):
    """A predictor that shows sampled rows to a scikit-learn estimator of trees.

    Of workers that did not fail only a sample is kept, of share s. The estimator's odds are too
    high by 1/s then, so log s is added to the log odds (King and Zeng, "Logistic Regression in
    Rare Events Data", 2001, section 4.1).

    A subclass has the class attributes ``name``, ``Options`` (which extend :class:`RowOptions`) and
    ``trusted``, and the three methods that are abstract here. What it computes from a view is in
    ``features``.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.ensemble import ExtraTreesClassifier
    >>> from torchloom_core.learning import RowLearner, RowOptions
    >>> from torchloom_core.learning import check_forest, with_something_known
    >>> from torchloom_core.plugin import Example
    >>> from torchloom_core.testing import view_of
    >>> class Stumps(RowLearner):
    ...     name = "stumps"
    ...     trusted = ("sklearn.tree._tree.Tree",)
    ...
    ...     class Options(RowOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ...         pass
    ...
    ...     def grow(self, rows):
    ...         stumps = ExtraTreesClassifier(n_estimators=9, max_depth=1, random_state=0)
    ...         return stumps.fit(with_something_known(rows.features), rows.failed)
    ...
    ...     def log_odds(self, trees, features):
    ...         sure, failed = trees.predict_proba(with_something_known(features)).T
    ...         return np.log(failed + 1e-3) - np.log(sure + 1e-3)
    ...
    ...     def check(self, trees, columns):
    ...         check_forest(trees, columns, self.part)
    >>> options = Stumps.Options(metrics=("temp",), spans_s=(), half_lives_s=())
    >>> learner, restored = Stumps(options), Stumps(options)
    >>> view = view_of({"temp": [50.0] * 5 + [90.0] * 5})
    >>> learner.fit([Example(view=view, outcome=np.repeat([0.0, 1.0], 5))])
    >>> restored.restore(learner.parts())
    >>> (restored.forecast(view).probability > 0.5).tolist() == [False] * 5 + [True] * 5
    True
    """

    name: ClassVar[str]
    Options: type[msgspec.Struct]
    variants: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    """Options other than the defaults that are worth a try where a predictor is chosen."""
    trusted: ClassVar[tuple[str, ...]]
    """Types that skops may load beside those it trusts anyway."""

    def __init__(self, options: RowOptions) -> None:
        self.features = Features(
            metrics=options.metrics,
            spans_s=options.spans_s,
            attributes=options.attributes,
            groups=options.groups,
            half_lives_s=options.half_lives_s,
            seasons_s=options.seasons_s,
            incident_s=options.incident_s,
        )
        self._max_healthy = options.max_healthy
        self._seed = options.seed
        self._trees: Any = None
        self._restored = b""  # would not always be kept as the same bytes
        self._learned = Learned(features=(), shown=(), share=1.0, prior=0.0, usual=())
        self.horizon_s = options.horizon_s
        self.every_s = options.every_s
        self.needs = self.features.needs

    def read(self, features: Features) -> None:
        """Read other features than the options say; before it learns."""
        self.features = features
        self.needs = features.needs

    @abstractmethod
    def grow(self, rows: Rows) -> Any:
        """Return an estimator that learned from the rows; some columns may be all NaN."""

    def grow_again(self, trees: Any, rows: Rows) -> Any:
        """Return one that learned from more rows; what took long to choose of ``trees`` may stay.

        To those, by which probabilities were calibrated, other columns may have been shown.
        """
        return self.grow(rows)

    @abstractmethod
    def log_odds(self, trees: Any, features: Floats) -> Floats:
        """Return ``(rows,)`` as the estimator has them, for the sample it was shown."""

    @abstractmethod
    def check(self, trees: Any, columns: int) -> None:
        """Raise a ModelError if following these trees would leave them."""

    @property
    def part(self) -> str:
        """Name of the part that holds the trees."""
        return f"{self.name}.skops"

    def to_bytes(self, trees: Any) -> bytes:
        """Return the trees as they are kept."""
        return estimator_bytes(trees)

    def from_bytes(self, data: bytes, columns: int) -> Any:
        """Return the trees that :meth:`to_bytes` kept, checked; else raise a ModelError."""
        trees = estimator_part({self.part: data}, self.part, self.trusted)
        self.check(trees, columns)
        return trees

    def forecast(self, view: FleetView) -> Hazard:
        """Return ``(workers,)`` probabilities, NaN before fitting and for who left or is gone."""
        probability = np.full(len(view), np.nan)
        rows = np.flatnonzero(~view.is_in("left", "gone"))
        if self._trees is None or not len(rows):
            return Hazard(probability=probability)
        features = self.features.of(view)[rows][:, self._learned.shown]
        probability[rows] = self._judge(features)
        why = Reasons(
            rows, probability, self._learned.prior, lambda at: self._explain(features[at])
        )
        return Hazard(probability=probability, why=why)

    def _judge(self, features: Floats) -> Floats:
        """Return ``(rows,)`` probabilities."""
        with self._threads.limit(limits=1):  # a thread more waits longer than it works
            log_odds = self.log_odds(self._trees, features) + math.log(self._learned.share)
        probability: Floats = 0.5 * (1 + np.tanh(log_odds / 2))
        return probability

    @cached_property
    def _threads(self) -> Any:
        """Those of the libraries that the trees run in; to find them takes long."""
        from threadpoolctl import ThreadpoolController

        return ThreadpoolController()

    def _explain(self, features: Floats) -> list[str]:
        """Return for each row the feature without whose value it would be judged best."""
        rows, columns = features.shape
        if not rows:
            return []
        usual = np.array(self._learned.usual, dtype=float)
        otherwise = np.repeat(features[:, None, :], columns, axis=1)
        every = np.arange(columns)
        otherwise[:, every, every] = usual
        judged = self._judge(otherwise.reshape(-1, columns)).reshape(rows, columns)
        names = self.columns
        return [
            f"{names[column]} is {_number(features[row, column])}, usual is "
            f"{_number(usual[column])}: with that it would be {judged[row, column]:.2g}"
            for row, column in enumerate(judged.argmin(axis=1).tolist())
        ]

    def learning_bytes(self, size: FitSize) -> int:
        """Return how much memory learning takes at most."""
        return size.sample_bytes(self._max_healthy, len(self.features.names))

    @property
    def sampled(self) -> Hashable:
        """Tell which rows it learns from: learners of which this is equal learn from the same."""
        return self.features, self._max_healthy, self._seed

    def gathering(self) -> RowGathering:
        """Return what gathers its rows."""
        return RowGathering(self.features, self._max_healthy, self._seed)

    def learn(self, rows: Rows) -> None:
        """Grow the trees on rows of its features."""
        self._learn(rows, self.grow)

    def learn_again(self, rows: Rows) -> None:
        """Grow the trees on more rows of its features."""
        before = self._trees
        self._learn(rows, lambda more: self.grow_again(before, more))

    def _learn(self, rows: Rows, grow: Callable[[Rows], Any]) -> None:
        from threadpoolctl import threadpool_limits

        told = rows.narrowed
        with threadpool_limits(limits=1):  # sums in another order are other trees
            self._trees = grow(told)
        failed = int(rows.failed.sum())
        healthy = len(rows.failed) - failed
        self._restored = b""
        self._learned = Learned(
            features=self.features.names,
            shown=tuple(rows.telling.tolist()),
            share=rows.share,
            prior=failed / (failed + healthy / rows.share),
            usual=tuple(None if math.isnan(m) else m for m in told.usual.tolist()),
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """What it judges by, in words: the features that told rows apart."""
        return tuple(self._learned.features[place] for place in self._learned.shown)

    def parts(self) -> Mapping[str, bytes]:
        """Return the trees, and what goes with them as JSON."""
        return {
            self.part: self._restored or self.to_bytes(self._trees),
            f"{self.name}.json": msgspec.json.encode(self._learned),
        }

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Become what :meth:`parts` was taken from.

        Raises
        ------
        ModelError
            If a part is missing or damaged, or was learned from other features.
        """
        card = f"{self.name}.json"
        learned = json_part(parts, card, Learned)
        if learned.features != self.features.names:
            raise ModelError(
                f"{card}: need the {len(self.features.names)} features that the options ask "
                f"for, was {len(learned.features)} of other options"
            )
        kept = part_of(parts, self.part)
        if not all(0 <= place < len(learned.features) for place in learned.shown):
            raise ModelError(f"{card}: need columns that are among the features, was not")
        if len(learned.usual) != len(learned.shown):
            raise ModelError(
                f"{card}: need a usual value of each of the {len(learned.shown)} columns, was "
                f"{len(learned.usual)}"
            )
        trees = self.from_bytes(kept, len(learned.shown))
        self._trees, self._restored, self._learned = trees, kept, learned


def with_something_known(features: Floats) -> Floats:
    """Return the features, 0 in columns that nobody knows: trees find no cut there.

    Parameters
    ----------
    features : (rows, features) float64
        NaN where unknown.

    Examples
    --------
    >>> import numpy as np
    >>> from torchloom_core.learning import with_something_known
    >>> with_something_known(np.array([[np.nan, 1.0], [np.nan, np.nan]]))
    array([[ 0.,  1.],
           [ 0., nan]])
    """
    unknown = np.isnan(features).all(axis=0)
    return np.where(unknown, 0.0, features) if unknown.any() else features


def _number(value: float) -> str:
    return "unknown" if math.isnan(value) else f"{value:.4g}"
