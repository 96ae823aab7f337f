"""The training data of a model is recognized, whatever its name."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from msgspec.structs import replace

from tests.evaluate.episodes import CONFIG, DAY_NS, START_NS, event, some_events, write
from torchloom_core.floor.errors import LeakError
from torchloom_core.lab.activation.discovery import discover
from torchloom_core.lab.evaluate.forecasts.scoring import scorer_of
from torchloom_core.lab.evaluate.forecasts.training_trace import was_fitted_on
from torchloom_core.lab.evaluate.goodput.candidates import Forecaster
from torchloom_core.lab.fitting.fit import fit
from torchloom_core.lab.fitting.time_split import FitSettings
from torchloom_core.lab.trace.bundle.bundle import DerivedBundle
from torchloom_core.lab.trace.bundle.recorded_values import prints, same_recording
from torchloom_core.lab.trace.bundle.telemetry import conform

UNTIL_NS = START_NS + 3 * DAY_NS
EVENTS = some_events(count=60)
LATER = [event(100, 24 * 5.9, "n7")]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    trace = write(tmp_path_factory.mktemp("trace") / "first.tltrace", EVENTS, metrics=("heat",))
    info = next(one for one in discover() if one.name == "fault_history")
    settings = FitSettings(until_ns=UNTIL_NS, tick_s=3600.0, repair_s=86_400.0)
    return fit(trace, info, {"every_s": 3600.0, "horizon_s": 21_600.0}, settings)


def test_the_same_data_under_another_name_are_not_scored_on_what_was_learned_from(model, tmp_path):
    again = write(tmp_path / "second.tltrace", EVENTS, metrics=("heat",))
    model.save(tmp_path / "m.tlmodel")
    table = {"model": str(tmp_path / "m.tlmodel")}
    tested = [Forecaster(label="it", name="fault_history", table=table)]
    with pytest.raises(LeakError, match="test_tuned_threshold"):
        scorer_of(again, tested, CONFIG, until_ns=START_NS + DAY_NS).scores()
    (score,) = scorer_of(again, tested, CONFIG).scores()
    assert score.from_ns >= UNTIL_NS


def test_training_data_is_recognized_by_events_alone(model, tmp_path):
    events = [replace(one, id=f"x{one.id}", kind="other") for one in EVENTS]
    assert was_fitted_on(model, write(tmp_path / "t.tltrace", events))


def test_training_data_is_recognized_by_telemetry_alone(model, tmp_path):
    others = some_events(seed=1, count=60)
    assert was_fitted_on(model, write(tmp_path / "t.tltrace", others, metrics=("heat",)))


class Changed(DerivedBundle):
    """A bundle with its rows of telemetry changed, a frame at a time."""

    def __init__(self, bundle, change):
        super().__init__(bundle)
        self._change = change

    @property
    def metrics(self):
        return ("cold", *self._bundle.metrics)

    def telemetry(self, start_ns=None, end_ns=None, metrics=None):
        for table in self._bundle.telemetry(start_ns, end_ns, metrics):
            yield conform(pa.Table.from_pandas(self._change(table.to_pandas())), "here")


def colder(frame):
    cold = frame.assign(metric="cold", value=-frame["value"])
    return pd.concat([cold, frame]).sort_values("t_avail", kind="stable")


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (colder, True),
        (lambda frame: frame[frame["component"].isin(["n0", "n1", "n2"])], True),
        (lambda frame: frame[frame["t_avail"] > START_NS + DAY_NS], True),
        (lambda frame: frame.assign(value=frame["value"].round(3)), True),
        (lambda frame: frame.assign(value=np.where(frame.index % 20, frame["value"], 0.0)), True),
        (lambda frame: frame.assign(value=np.where(frame.index % 5, frame["value"], 0.0)), False),
        (lambda frame: frame.assign(value=frame["value"] + 1.0), False),
        (lambda frame: frame.assign(t_event=frame["t_event"] + 10 * 10**9), False),
        (lambda frame: frame.assign(valid=False), False),
        (lambda frame: frame[frame["t_avail"] >= UNTIL_NS], False),
    ],
)
def test_telemetry_is_recognized_by_values_of_the_training_time(model, tmp_path, change, same):
    others = some_events(seed=1, count=60)
    bundle = write(tmp_path / "t.tltrace", others, metrics=("heat",))
    assert was_fitted_on(model, Changed(bundle, change)) == same


def test_a_longer_recording_of_the_same_fleet_is_recognized(model, tmp_path):
    assert was_fitted_on(model, write(tmp_path / "t.tltrace", [*EVENTS, *LATER]))


def test_another_fleets_trace_of_the_same_name_is_another_one(model, tmp_path):
    others = some_events(seed=1, count=60)
    assert not was_fitted_on(model, write(tmp_path / "first.tltrace", others, metrics=("cold",)))


@pytest.mark.parametrize(
    "events",
    [
        [*EVENTS, event(100, 1.0, "n7")],
        [*EVENTS, event(100, 1.0, "n7", fatal=False), event(101, 24 * 5.9, "n7")],
        [event(100 + n, -24.0 * n, f"n{n % 8}") for n in range(1, 60)] + EVENTS,
        [replace(one, fatal=False) for one in EVENTS],
        [replace(EVENTS[0], component="n5"), *EVENTS[1:]],
        [replace(one, t_event=one.t_event - one.t_event % 10**9) for one in EVENTS],
        [one for one in EVENTS if one.component in ("n2", "n3", "n4")],
        EVENTS[22:],
    ],
    ids=[
        "a failure more",
        "an event that is no failure",
        "begins earlier",
        "not called failures",
        "one corrected",
        "in whole seconds",
        "of three of its nodes",
        "begins later",
    ],
)
def test_a_nearly_identical_trace_is_recognized(model, tmp_path, events):
    bundle = write(tmp_path / "t.tltrace", events, metrics=("heat", "cold"))
    assert was_fitted_on(model, bundle)
    assert not was_fitted_on(
        model, write(tmp_path / "o.tltrace", some_events(seed=1, count=60), metrics=("cold",))
    )


def test_a_failure_or_two_that_are_the_same_are_chance_unless_there_were_no_more():
    few, more = prints(EVENTS[:2]), prints(EVENTS[:10])
    assert same_recording(few, EVENTS[:2], EVENTS[:2])
    assert not same_recording(more, EVENTS[:2], EVENTS[:2])
    assert same_recording(more, EVENTS[:3], EVENTS[:3])
    assert not same_recording((), EVENTS, EVENTS)
