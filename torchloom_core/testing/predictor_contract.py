"""The tests for all predictors; a predictor's own tests subclass them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from torchloom_core.interface.api import Hazard, Predictor
from torchloom_core.interface.contract import needs_problem, pace_problem
from torchloom_core.interface.view import FleetView
from torchloom_core.testing import checks
from torchloom_core.testing.clock_trap import clock_trap
from torchloom_core.testing.history import blank, history

_SEEDS = range(4)


class PredictorContract:
    """Subclass it as ``class TestMyPredictor(PredictorContract)`` and pytest runs it.

    Attributes
    ----------
    predictor_class : type
        The predictor under test.
    options : dict
        Its options, as under ``[predictors.<name>]`` in ``torchloom.toml``.

    Examples
    --------
    >>> import msgspec
    >>> import numpy as np
    >>> from torchloom_core.plugin import Hazard
    >>> from torchloom_core.testing import PredictorContract
    >>> class Even:
    ...     name = "even"
    ...     needs = ()
    ...     horizon_s = 3600.0
    ...     every_s = 600.0
    ...
    ...     class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ...         hazard: float = 0.01
    ...
    ...     def __init__(self, options):
    ...         self._hazard = options.hazard
    ...
    ...     def forecast(self, view):
    ...         return Hazard(probability=np.full(len(view), self._hazard))
    >>> class TestEven(PredictorContract):
    ...     predictor_class = Even
    >>> TestEven().test_it_gives_a_probability_for_every_row()
    >>> class TestTooSure(PredictorContract):
    ...     predictor_class = Even
    ...     options = {"hazard": 1.5}
    >>> TestTooSure().test_it_gives_a_probability_for_every_row()
    Traceback (most recent call last):
    AssertionError: need probabilities in [0, 1] or NaN, was 1.5
    """

    predictor_class: ClassVar[type[Any]]
    options: ClassVar[Mapping[str, Any]] = {}

    def make(self) -> Predictor:
        """Return a new predictor with the options."""
        predictor: Predictor = checks.build(self.predictor_class, self.options)
        return predictor

    def views(self, seed: int = 0) -> list[FleetView]:
        """Return the history of the fleet for the predictor."""
        return history(self.make().needs, seed)

    def run(self, views: Sequence[FleetView]) -> list[Hazard]:
        """Return the forecasts of a new predictor for each view."""
        predictor = self.make()
        return [predictor.forecast(view) for view in views]

    def test_its_name_and_options_fit_the_config(self) -> None:
        """Check ``name`` and ``Options``."""
        checks.check_class(self.predictor_class)

    def test_it_declares_what_it_reads_and_how_often(self) -> None:
        """Check ``needs``, ``horizon_s`` and ``every_s``; reading other data is a KeyError."""
        predictor = self.make()
        problem = needs_problem("predictor", predictor.needs, math.inf) or pace_problem(predictor)
        assert not problem, problem
        for seed in _SEEDS:
            self.run(self.views(seed))

    def test_it_gives_a_probability_for_every_row(self) -> None:
        """Check shape ``(workers,)``, values in [0, 1] or NaN, and reasons for existing rows."""
        for seed in _SEEDS:
            views = self.views(seed)
            for view, hazard in zip(views, self.run(views), strict=True):
                check_hazard(hazard, len(view))

    def test_the_same_views_give_the_same_hazards(self) -> None:
        """Check that a second instance makes the same forecasts."""
        for seed in _SEEDS:
            first, second = self.run(self.views(seed)), self.run(self.views(seed))
            for one, other in zip(first, second, strict=True):
                check_same(one, other, "for the same views")

    def test_an_empty_fleet_is_no_error(self) -> None:
        """Check that a fleet without workers is no error."""
        self._check_blank(0)

    def test_missing_metrics_are_no_error(self) -> None:
        """Check that metrics without any sample are no error."""
        self._check_blank(4)

    def _check_blank(self, workers: int) -> None:
        predictor = self.make()
        check_hazard(predictor.forecast(blank(predictor.needs, workers)), workers)

    def test_it_does_not_modify_the_view(self) -> None:
        """Check that the view is unchanged."""
        predictor = self.make()
        for view in self.views():
            before = checks.snapshot(view, predictor.needs)
            predictor.forecast(view)
            checks.check_unchanged(before, checks.snapshot(view, predictor.needs))

    def test_it_reads_no_clock(self) -> None:
        """Check that it takes the time only from the view."""
        predictor, views = self.make(), self.views()
        with clock_trap(self.predictor_class) as read:
            for view in views:
                predictor.forecast(view)
        assert not read, f"need no clock but view.now_ns, was {read[0]}()"


def check_hazard(hazard: Any, workers: int) -> None:
    """Fail unless ``hazard`` is valid for a view with this number of workers."""
    assert isinstance(hazard, Hazard), f"need a Hazard, was {hazard!r:.80}"
    probability = np.asarray(hazard.probability)
    assert probability.shape == (workers,), (
        f"need probabilities of shape ({workers},), was {probability.shape}"
    )
    assert probability.dtype.kind == "f", f"need float probabilities, was {probability.dtype}"
    judged = probability[~np.isnan(probability)]
    wrong = judged[(judged < 0) | (judged > 1)]
    assert not len(wrong), f"need probabilities in [0, 1] or NaN, was {float(wrong[0])!r}"
    for row, text in hazard.why.items():
        assert 0 <= row < workers, f"need reasons for rows below {workers}, was {row!r}"
        assert isinstance(text, str), f"need a sentence as reason, was {text!r:.60}"


def check_same(one: Hazard, other: Hazard, when: str) -> None:
    """Fail unless two answers to one view are bit for bit equal."""
    same = np.array_equal(one.probability, other.probability, equal_nan=True)
    assert same, f"need the same probabilities {when}, was different"
    assert one.why == other.why, f"need the same reasons {when}, was different"
