"""The base class of predictors that learn trees from labelled rows of features."""

import math
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np

from torchloom_core.config.ranges import NotNegative, Positive
from torchloom_core.floor.errors import ModelError
from torchloom_core.interface.api import Hazard
from torchloom_core.interface.arrays import Floats
from torchloom_core.interface.view import FleetView
from torchloom_core.lab.learning.artifacts import (
    estimator_bytes,
    estimator_part,
    json_part,
    part_of,
)
from torchloom_core.lab.learning.features import Features
from torchloom_core.lab.learning.gathered_learner import FitSize, GatheredLearner
from torchloom_core.lab.learning.rows import RowGathering, Rows
from torchloom_core.lab.learning.words import Reasons


class RowOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of every such predictor.

    Examples
    --------
    >>> from torchloom_core.lab.learning import RowOptions
    >>> class Options(RowOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ...     trees: int = 200
    >>> options = Options(metrics=("gpu_temp_celsius",), trees=50)
    >>> options.horizon_s, options.trees
    (3600.0, 50)
    """

    metrics: tuple[str, ...] = ()
    """Metrics to read; () for the fault history only."""
    spans_s: tuple[Positive, ...] = (600.0, 3600.0)
    """Spans over which each metric is aggregated, seconds."""
    attributes: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    """Numeric labels of a component, such as its size; labels that components have in common
    besides their rack, such as their model."""
    half_lives_s: tuple[Positive, ...] = (86_400.0, 864_000.0, 8_640_000.0, 86_400_000.0)
    """Ages at which a fault counts half, seconds; () for no fault history."""
    seasons_s: tuple[Positive, ...] = ()
    """Periods of the time features, seconds; () for none."""
    incident_s: NotNegative = 60.0
    """Faults on one node closer together than this are one incident, seconds."""
    max_healthy: Annotated[int, msgspec.Meta(ge=100)] = 100_000
    """Most healthy moments of workers to learn from."""
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Of the sample, and of the estimator."""
    horizon_s: Positive = 3600.0
    every_s: Positive = 60.0
    """Horizon and forecast interval, seconds."""


class Learned(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is stored beside the estimator."""

    features: tuple[str, ...]
    shown: tuple[int, ...]
    """Indices of the informative columns, which the estimator uses."""
    share: float
    prior: float
    """Share of the healthy rows in the training sample, and of positive rows before sampling."""
    usual: tuple[float | None, ...]
    """Median of each used column over healthy rows, None if it is mostly unknown."""


class RowLearner(GatheredLearner):
    """A predictor that fits a scikit-learn estimator of trees on sampled rows.

    Only a share s of the healthy rows is sampled. The estimator's odds are then too high by 1/s, so
    log s is added to the log odds (King and Zeng, "Logistic Regression in Rare Events Data", 2001,
    section 4.1).

    A subclass defines the class attributes ``name``, ``Options`` (which extend :class:`RowOptions`)
    and ``trusted``, and the three abstract methods. Its options are in ``options``, its
    inputs in ``features``.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.ensemble import ExtraTreesClassifier
    >>> from torchloom_core.lab.learning import RowLearner, RowOptions
    >>> from torchloom_core.lab.learning import check_forest, fill_unknown_columns
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
    ...         return stumps.fit(fill_unknown_columns(rows.features), rows.failed)
    ...
    ...     def log_odds(self, trees, features):
    ...         sure, failed = trees.predict_proba(fill_unknown_columns(features)).T
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
    """Other options that ``--predictor auto`` tries."""
    trusted: ClassVar[tuple[str, ...]]
    """Types that skops may load besides those it trusts by default."""

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
        self.options = options
        self._trees: Any = None
        self._restored = b""  # serialising again could give other bytes
        self._learned = Learned(features=(), shown=(), share=1.0, prior=0.0, usual=())
        self.horizon_s = options.horizon_s
        self.every_s = options.every_s
        self.needs = self.features.needs

    def read(self, features: Features) -> None:
        """Use other features than those of the options; call before fitting."""
        self.features = features
        self.needs = features.needs

    @abstractmethod
    def grow(self, rows: Rows) -> Any:
        """Return an estimator fitted on the rows; some columns may be all NaN."""

    def grow_again(self, trees: Any, rows: Rows) -> Any:
        """Return an estimator of more rows, which may reuse settings of ``trees``, not columns."""
        return self.grow(rows)

    @abstractmethod
    def log_odds(self, trees: Any, features: Floats) -> Floats:
        """Return ``(rows,)`` log odds of the estimator, relative to its training sample."""

    @abstractmethod
    def check(self, trees: Any, columns: int) -> None:
        """Raise a ModelError if the trees have indices out of range."""

    @property
    def part(self) -> str:
        """Name of the part with the trees."""
        return f"{self.name}.skops"

    def to_bytes(self, trees: Any) -> bytes:
        """Serialise the trees."""
        return estimator_bytes(trees)

    def from_bytes(self, data: bytes, columns: int) -> Any:
        """Return the trees that :meth:`to_bytes` serialised, or raise a ModelError."""
        trees = estimator_part({self.part: data}, self.part, self.trusted)
        self.check(trees, columns)
        return trees

    def forecast(self, view: FleetView) -> Hazard:
        """Return ``(workers,)`` probabilities, NaN before fitting and for workers left or gone."""
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
        with self._threads.limit(limits=1):  # the work is too small for more threads
            log_odds = self.log_odds(self._trees, features) + math.log(self._learned.share)
        probability: Floats = 0.5 * (1 + np.tanh(log_odds / 2))
        return probability

    @cached_property
    def _threads(self) -> Any:
        """The thread pools of the trees' libraries, cached as finding them is slow."""
        from threadpoolctl import ThreadpoolController

        return ThreadpoolController()

    def _explain(self, features: Floats) -> list[str]:
        """Return for each row the feature whose usual value would lower the probability most."""
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
        """Return the most memory that learning takes, bytes."""
        return size.sample_bytes(self.options.max_healthy, len(self.features.names))

    @property
    def sampled(self) -> Hashable:
        """A key of its rows: learners with equal keys learn from the same rows."""
        return self.features, self.options.max_healthy, self.options.seed

    def gathering(self) -> RowGathering:
        """Return a new gathering of its rows."""
        return RowGathering(self.features, self.options.max_healthy, self.options.seed)

    def learn(self, rows: Rows) -> None:
        """Grow the trees on rows of its features."""
        self._learn(rows, self.grow)

    def learn_again(self, rows: Rows) -> None:
        """Grow the trees on more rows of its features."""
        before = self._trees
        self._learn(rows, lambda more: self.grow_again(before, more))

    def _learn(self, rows: Rows, grow: Callable[[Rows], Any]) -> None:
        from threadpoolctl import threadpool_limits

        narrowed = rows.narrowed
        with threadpool_limits(limits=1):  # another order of sums would give other trees
            self._trees = grow(narrowed)
        failed = int(rows.failed.sum())
        healthy = len(rows.failed) - failed
        self._restored = b""
        self._learned = Learned(
            features=self.features.names,
            shown=tuple(rows.informative.tolist()),
            share=rows.share,
            prior=failed / (failed + healthy / rows.share),
            usual=tuple(None if math.isnan(m) else m for m in narrowed.usual.tolist()),
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the informative features, which it uses."""
        return tuple(self._learned.features[place] for place in self._learned.shown)

    def parts(self) -> Mapping[str, bytes]:
        """Return the trees, and the rest of the model as JSON."""
        return {
            self.part: self._restored or self.to_bytes(self._trees),
            f"{self.name}.json": msgspec.json.encode(self._learned),
        }

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Restore the parts; ModelError if one is missing or damaged, or has other features."""
        card = f"{self.name}.json"
        learned = json_part(parts, card, Learned)
        self.features.refuse_others(learned.features, card)
        data = part_of(parts, self.part)
        if not all(0 <= place < len(learned.features) for place in learned.shown):
            raise ModelError(f"{card}: need column indices of its features")
        if len(learned.usual) != len(learned.shown):
            raise ModelError(
                f"{card}: need a usual value of each of the {len(learned.shown)} columns, was "
                f"{len(learned.usual)}"
            )
        trees = self.from_bytes(data, len(learned.shown))
        self._trees, self._restored, self._learned = trees, data, learned


def _number(value: float) -> str:
    return "unknown" if math.isnan(value) else f"{value:.4g}"
