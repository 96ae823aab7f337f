"""Forecasts that are scored are made again from another future, a twentieth of them."""

import sys

import pytest

from tests.evaluate.episodes import CONFIG, some_events, write
from torchloom_core.errors import LeakError
from torchloom_core.evaluate.forecasts.scoring import Scoring, scorer_of
from torchloom_core.evaluate.goodput.candidates import Forecaster
from torchloom_core.evaluate.installed import installed

LATE = '''
"""Says nothing at first, then the same each time, and then what it never said before."""

import itertools

import msgspec
import numpy as np

from torchloom_core.plugin import Hazard, hookimpl

CALLS = itertools.count(1)


class Late:
    name = "late"
    horizon_s = 21_600.0
    every_s = 3600.0
    needs = ()

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        silent: int
        same: int

    def __init__(self, options):
        self.options = options
        self.asked = 0

    def forecast(self, view):
        self.asked += 1
        judged = self.asked - self.options.silent
        another = next(CALLS) / 1e6
        says = np.nan if judged < 1 else 0.5 if judged <= self.options.same else another
        return Hazard(probability=np.full(len(view), says))


@hookimpl
def torchloom_register(registry):
    registry.predictor(Late)
'''


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "small.tltrace"
    return write(path, some_events(count=60))


@pytest.fixture
def late(tmp_path, monkeypatch):
    """Install the predictor, as a package is."""
    (tmp_path / "late_predictor.py").write_text(LATE)
    metadata = tmp_path / "late-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: late\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[torchloom]\nlate = late_predictor\n")
    monkeypatch.syspath_prepend(tmp_path)
    installed.cache_clear()
    yield
    installed.cache_clear()
    sys.modules.pop("late_predictor", None)


def scored(bundle, **table):
    tested = [Forecaster(label="late", name="late", table=table)]
    return scorer_of(bundle, tested, CONFIG, Scoring()).scores()


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize(("silent", "same"), [(0, 0), (0, 7), (10, 7), (140, 0)])
def test_a_twentieth_of_the_forecasts_from_the_first_on_is_looked_at(bundle, silent, same):
    with pytest.raises(LeakError, match="predictor late: future_feature: "):
        scored(bundle, silent=silent, same=same)


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("silent", [0, 10])
def test_what_is_said_after_that_is_not_looked_at(bundle, silent):
    (score,) = scored(bundle, silent=silent, same=8)
    assert (score.predictor, score.threshold_from) == ("late", "before 3.6 d")
