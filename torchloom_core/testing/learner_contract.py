"""The tests for predictors that learn, in addition to those for all predictors."""

import io
import pickletools
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import msgspec
import numpy as np

from torchloom_core.floor.errors import ModelError, PluginError, TorchloomError
from torchloom_core.interface.api import Example, Learner
from torchloom_core.interface.arrays import Floats, frozen
from torchloom_core.interface.view import FleetView
from torchloom_core.interface.view_parts import Metrics
from torchloom_core.testing import checks, history
from torchloom_core.testing.clock_trap import clock_trap
from torchloom_core.testing.predictor_contract import (
    PredictorContract,
    check_hazard,
    check_same,
)

_learned: dict[type, Mapping[str, bytes]] = {}
_NUMPY = b"\x93NUMPY"
_HEADER_BYTES = 256


class LearnerContract(PredictorContract):
    """Subclass it as ``class TestMyPredictor(LearnerContract)`` and pytest runs it.

    It includes the tests and attributes of :class:`PredictorContract`.

    Attributes
    ----------
    supervised : bool
        Whether it learns from outcomes. Set False for one that only learns normal behaviour, which
        needs no failure in its examples.

    Examples
    --------
    >>> import msgspec
    >>> import numpy as np
    >>> from torchloom_core.lab.learning import json_part
    >>> from torchloom_core.plugin import Hazard
    >>> from torchloom_core.testing import LearnerContract
    >>> class BaseRate:
    ...     name = "base_rate"
    ...     needs = ()
    ...     horizon_s = 3600.0
    ...     every_s = 600.0
    ...
    ...     class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ...         pass
    ...
    ...     def __init__(self, options):
    ...         self._rate = np.nan
    ...
    ...     def forecast(self, view):
    ...         return Hazard(probability=np.full(len(view), self._rate))
    ...
    ...     def fit(self, examples):
    ...         self._rate = float(np.nanmean(np.concatenate([e.outcome for e in examples])))
    ...
    ...     def parts(self):
    ...         return {"rate.json": msgspec.json.encode(self._rate)}
    ...
    ...     def restore(self, parts):
    ...         self._rate = json_part(parts, "rate.json", float)
    >>> class TestBaseRate(LearnerContract):
    ...     predictor_class = BaseRate
    >>> TestBaseRate().test_a_restored_one_forecasts_the_same_to_the_bit()
    >>> TestBaseRate().test_nothing_to_learn_from_is_an_error()
    Traceback (most recent call last):
    ValueError: need at least one array to concatenate
    """

    supervised: ClassVar[bool] = True

    def fresh(self) -> Learner:
        """Return an untrained predictor with the options."""
        learner: Learner = checks.build(self.predictor_class, self.options)
        return learner

    def make(self) -> Learner:
        """Return a predictor trained on the examples."""
        if type(self) not in _learned:
            _learned[type(self)] = self.parts_after(self.examples())
        learner = self.fresh()
        learner.restore(_learned[type(self)])
        return learner

    def views(self, seed: int = 0) -> list[FleetView]:
        """Return the history of the fleet for the predictor."""
        return history.history(self.fresh().needs, seed)

    def examples(self, seed: int = 0) -> list[Example]:
        """Return the training examples."""
        return history.examples(self.fresh().needs, seed)

    def parts_after(self, examples: Iterable[Example]) -> Mapping[str, bytes]:
        """Return the parts of a new predictor trained on these examples."""
        learner = self.fresh()
        learner.fit(examples)
        return learner.parts()

    def test_an_untrained_one_returns_a_forecast(self) -> None:
        """Check that an untrained predictor returns a forecast, such as all NaN."""
        learner = self.fresh()
        for view in self.views():
            check_hazard(learner.forecast(view), len(view))

    def test_its_parts_are_bytes_without_pickle(self) -> None:
        """Check ``parts``: plain file names, and no pickle, which could run code."""
        parts = self.parts_after(self.examples())
        assert parts, "need at least one file in parts(), was empty"
        for name, data in parts.items():
            plain = name.replace("_", "").replace("-", "").replace(".", "").isalnum()
            assert plain and not name.startswith("."), (  # noqa: PT018 - one rule
                f"need plain file names in parts(), was {name!r}"
            )
            assert isinstance(data, bytes), f"{name}: need bytes, was {type(data).__name__}"
            assert not holds_pickle(data), f"{name}: need no pickle, was one"

    def test_training_is_deterministic(self) -> None:
        """Check that training is deterministic."""
        check_same_parts(
            self.parts_after(self.examples()),
            self.parts_after(self.examples()),
            "for the same examples",
        )

    def test_each_fit_starts_anew(self) -> None:
        """Check that each ``fit`` starts anew: ``torchloom fit`` calls it twice."""
        learner = self.fresh()
        learner.fit(self.examples(seed=1))
        learner.fit(self.examples())
        check_same_parts(self.parts_after(self.examples()), learner.parts(), "after a second fit")

    def test_a_restored_one_forecasts_the_same_to_the_bit(self) -> None:
        """Check ``restore`` against the trained instance."""
        learner, restored = self.fresh(), self.fresh()
        learner.fit(self.examples())
        restored.restore(learner.parts())
        for view in self.views(seed=1):
            check_same(learner.forecast(view), restored.forecast(view), "from a restored one")
        check_same_parts(learner.parts(), restored.parts(), "from a restored one")

    def test_parts_that_are_missing_or_damaged_are_refused(self) -> None:
        """Check that ``restore`` raises a ModelError for missing or truncated parts."""
        parts = self.parts_after(self.examples())
        for name, data in parts.items():
            without = {other: parts[other] for other in parts if other != name}
            cut = {**parts, name: data[: len(data) // 2]}
            for wrong in (without, cut):
                check_refused(ModelError, f"{name} missing or cut", self.fresh().restore, wrong)

    def test_a_forecast_depends_on_its_view_alone(self) -> None:
        """Check that a forecast does not depend on earlier or later views."""
        views = self.views(seed=1)
        backwards = self.run(views[::-1])[::-1]
        for one, other in zip(self.run(views), backwards, strict=True):
            check_same(one, other, "for any order of the views")

    def test_it_copies_the_data_of_views(self) -> None:
        """Check that it copies the data it needs: a view's arrays are overwritten later."""
        check_same_parts(
            self.parts_after(self.examples()),
            self.parts_after(_passing(self.examples())),
            "if views are overwritten",
        )

    def test_fitting_does_not_modify_the_views(self) -> None:
        """Check that training does not modify views and outcomes."""
        examples, needs = self.examples(), self.fresh().needs
        before = [checks.snapshot(example.view, needs) for example in examples]
        outcomes = [example.outcome.tobytes() for example in examples]
        self.parts_after(examples)
        for example, taken, outcome in zip(examples, before, outcomes, strict=True):
            checks.check_unchanged(taken, checks.snapshot(example.view, needs))
            assert example.outcome.tobytes() == outcome, "need an unchanged outcome"

    def test_unknown_outcomes_have_no_effect(self) -> None:
        """Check that examples with unknown outcomes have no effect, if supervised."""
        if self.supervised:
            unknown = _with_outcome(self.examples(seed=1), np.nan)
            both = [each for pair in zip(self.examples(), unknown, strict=True) for each in pair]
            check_same_parts(
                self.parts_after(self.examples()),
                self.parts_after(both),
                "with and without unknown outcomes",
            )

    def test_nothing_to_learn_from_is_an_error(self) -> None:
        """Check that ``fit`` raises a PluginError without examples or, if supervised, failures."""
        barren: list[list[Example]] = [[]]
        healthy = [_with_outcome(self.examples(), outcome) for outcome in (0.0, np.nan)]
        if self.supervised:
            barren += healthy
        else:
            for examples in healthy:
                self.parts_after(examples)
        for examples in barren:
            check_refused(PluginError, "nothing to learn from", self.fresh().fit, examples)

    def test_it_learns_without_a_clock(self) -> None:
        """Check that training reads no clock."""
        learner, examples = self.fresh(), self.examples()
        with clock_trap(self.predictor_class) as read:
            learner.fit(examples)
            learner.parts()
        assert not read, f"need no clock but view.now_ns, was {read[0]}()"


def check_same_parts(one: Mapping[str, bytes], other: Mapping[str, bytes], when: str) -> None:
    """Fail unless two sets of parts are equal."""
    differ = sorted(n for n in one.keys() | other.keys() if one.get(n) != other.get(n))
    assert not differ, f"need the same parts() {when}, was different: {', '.join(differ)}"


def check_refused(
    error: type[TorchloomError], when: str, call: Callable[[Any], None], argument: Any
) -> None:
    """Fail unless the call raises the error."""
    try:
        call(argument)
    except error:
        return
    raise AssertionError(f"need a {error.__name__} with {when}, was none")


def _with_outcome(examples: Iterable[Example], outcome: float) -> list[Example]:
    return [
        msgspec.structs.replace(example, outcome=np.full(len(example.view), outcome))
        for example in examples
    ]


class _Lent:
    """Metrics of a view that are overwritten by the next view, as live ring buffers are."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._lent: list[Floats] = []

    def lend(self, array: Floats) -> Floats:
        """Return a read-only array that :meth:`overwrite` changes."""
        self._lent.append(np.array(array))
        return frozen(self._lent[-1].view())

    def overwrite(self) -> None:
        """Overwrite all arrays."""
        for array in self._lent:
            array.fill(-1234.5)

    def __getattr__(self, name: str) -> Callable[..., Floats]:
        """Return a method of the metrics whose array is lent."""
        read = getattr(self._metrics, name)
        return lambda *arguments: self.lend(read(*arguments))


def _passing(examples: Iterable[Example]) -> Iterator[Example]:
    """Yield the examples, and overwrite each view when the next one is requested."""
    for example in examples:
        view: Any = example.view.twin()
        lent = _Lent(view._metrics)
        view._metrics = lent
        view.heartbeat_age_s = lent.lend(view.heartbeat_age_s)
        view.progress_age_s = lent.lend(view.progress_age_s)
        view.watched_s = lent.lend(view.watched_s)
        yield Example(view=view, outcome=example.outcome)
        lent.overwrite()


def holds_pickle(data: bytes) -> bool:
    """Return whether the bytes are a pickle, which may run any code, or hold one.

    Files of torch, joblib and numpy count as well. Bytes in another encoding, such as base64 in
    JSON, are not searched.

    Examples
    --------
    >>> import pickle
    >>> holds_pickle(pickle.dumps({"weight": 1.0})), holds_pickle(b'{"weight": 1.0}')
    (True, False)
    """
    if data.startswith(_NUMPY):
        return b"'|O'" in data[:_HEADER_BYTES]
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return any(holds_pickle(archive.read(name)) for name in archive.namelist())
    try:
        opcodes = sum(1 for _ in pickletools.genops(data))
    except (ValueError, UnicodeDecodeError, IndexError, OverflowError):
        return False
    return opcodes > 1
