"""Views built from plain arrays behave like the Weaver's."""

import numpy as np
import pytest

from torchloom_core.plugin import Fault, Forecast, Need
from torchloom_core.testing import view_of
from torchloom_core.testing.history import TICKS, history

NAN = float("nan")


def test_the_last_sample_is_the_newest_and_missing_ones_are_skipped():
    view = view_of({"loss": [[3.0, 2.0, NAN], [1.0, NAN, NAN]]}, tick_s=5.0)
    assert view.latest("loss").tolist() == [2.0, 1.0]
    assert view.age_s("loss").tolist() == [5.0, 10.0]
    np.testing.assert_array_equal(view.window("loss", 10.0), [[2.0, NAN], [NAN, NAN]])


def test_metrics_with_different_lengths_end_at_the_same_time():
    view = view_of({"loss": [[3.0, 2.0, 1.0]], "heat": [50.0]}, tick_s=5.0)
    assert (view.age_s("loss"), view.age_s("heat")) == ([0.0], [0.0])
    assert (view.latest("loss"), view.latest("heat")) == ([1.0], [50.0])


def test_faults_are_in_order_and_by_place():
    first, second, third = (
        Fault(worker="w0", node=node, kind="exit", ts_ns=ts_ns, id="same")
        for node, ts_ns in (("n0", 1), ("", 2), ("n0", 3))
    )
    view = view_of(workers=1, faults=[first, second, third])
    assert view.faults == (first, second, third)
    assert view.faults_of == {"n0": (first, third), "w0": (second,)}


def test_changes_to_a_twin_do_not_affect_the_view():
    fault = Fault(worker="w0", node="n0", kind="exit", ts_ns=1, id="1")
    view = view_of(workers=1, faults=[fault])
    twin = view.twin()
    twin.faults_of.clear()
    twin.faults = ()
    assert view.faults_of == {"n0": (fault,)}
    assert view.faults == (fault,)


def test_a_value_that_is_too_old_is_missing():
    view = view_of({"loss": [[3.0, NAN, NAN]]}, tick_s=5.0, stale_after_s=9.0)
    assert np.isnan(view.latest("loss")).all()


def test_a_metric_without_a_sample_is_missing():
    view = view_of({"loss": np.empty((2, 0)), "heat": [[1.0, 2.0], [3.0, 4.0]]})
    assert np.isnan(view.latest("loss")).all()
    assert view.age_s("loss").tolist() == [np.inf, np.inf]
    assert view.latest("heat").tolist() == [2.0, 4.0]


def test_a_metric_that_was_not_given_or_not_so_far_back_is_a_key_error():
    view = view_of({"loss": [[3.0, 2.0]]})
    with pytest.raises(KeyError):
        view.latest("gpu_temp_celsius")
    with pytest.raises(KeyError):
        view.window("loss", 3.0)


def test_arrays_of_a_view_cannot_be_written():
    view = view_of({"loss": [1.0]})
    for array in (view.step, view.heartbeat_age_s, view.latest("loss"), view.window("loss", 1.0)):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_rows_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="loss: need 2 rows, one per worker, was 3"):
        view_of({"loss": [1.0, 2.0, 3.0]}, workers=["a", "b"])


def test_forecasts_are_found_by_their_predictor():
    forecast = Forecast(id="f1", predictor="trend", horizon_s=60.0, hazard={"w1": 0.5})
    view = view_of(workers=2, forecasts=[forecast])
    assert view.forecast("trend") == forecast
    np.testing.assert_array_equal(view.hazard("trend"), [NAN, 0.5])


def test_an_undeclared_forecast_is_an_error_with_its_name():
    view = view_of(workers=1, predictors=["trend"])
    assert view.forecast("trend") is None
    np.testing.assert_array_equal(view.hazard("trend"), [NAN])
    for read in (view.forecast, view.hazard):
        with pytest.raises(KeyError, match="trnd: need a NeedForecast of it in needs"):
            read("trnd")


def test_two_histories_with_the_same_seed_are_equal_and_all_windows_fit():
    needs = [Need("loss", 3600.0), Need("loss", 60.0), Need("step_time_s")]
    one, other = history(needs, seed=3), history(needs, seed=3)
    assert len(one) == TICKS
    for first, second in zip(one, other, strict=True):
        np.testing.assert_array_equal(first.window("loss", 3600.0), second.window("loss", 3600.0))
        assert first.window("step_time_s", first.tick_s).shape == (len(first), 1)
        assert first.state == second.state
