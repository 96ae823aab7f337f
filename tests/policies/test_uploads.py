import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.config.schema import Costs
from torchloom_core.plugin import ChangeKnob, Forecast, KnobSpec
from torchloom_core.testing import view_of
from torchloom_core.testing.views import EPOCH_S
from torchloom_policies.uploads import UploadsPolicy

SPECS = [
    KnobSpec(name="upload_bytes_per_s", kind="float", low=0.0),
    KnobSpec(name="checkpoint_interval_s", kind="float", low=60.0),
]
FELT = ("checkpoint_felt_s", "checkpoint_memory_felt_s", "checkpoint_remote_felt_s")
LIMIT = 1.2e9 / (0.9 * 600.0)
TICK_S = 10.0


def policy(**options):
    return UploadsPolicy(UploadsPolicy.Options(**options))


def fleet(share, tick=0, *, limit=0.0, interval_s=600.0, state_bytes=1.2e9, hazard=None, **view):
    """Return four workers at 12.5 MB/s, the wire busy for this share of a step."""
    step = {"step_time_s": 1.0, "wire_s": share, "sent_bytes": 1.25e7 * share}
    rows = {
        **step,
        "round_s": math.nan,
        "state_bytes": state_bytes,
        "checkpoint_interval_s": view.pop("reported_s", math.nan),
        **dict.fromkeys(FELT, math.nan),
        **view.pop("felt", {}),
    }
    knobs = {"upload_bytes_per_s": limit, "checkpoint_interval_s": interval_s}
    knobs |= view.pop("more_values", {})
    forecast_id = "f1" if hazard else "f0"
    forecast = Forecast(id=forecast_id, predictor="trend", horizon_s=600.0, hazard=hazard or {})
    return view_of(
        {name: np.full((4, 60), value) for name, value in rows.items()},
        now_s=EPOCH_S + tick * TICK_S,
        knob_specs=view.pop("knob_specs", SPECS),
        knob_values=view.pop("knob_values", [knobs] * 4),
        costs=view.pop("costs", Costs()),
        forecasts=[forecast],
        **view,
    )


def after_an_hour(share, shown=None, **options):
    """Return a policy that has seen an hour of this network load."""
    uploads = policy(**options)
    for tick in range(-360, 0):
        assert not list(uploads.on_tick(fleet(share, tick, **(shown or {}))))
    return uploads


def values(uploads, view):
    return [proposal.action.value for proposal in uploads.on_tick(view)]


@pytest.mark.slow
def test_the_limit_lets_an_upload_end_just_before_the_next_checkpoint():
    (proposal,) = after_an_hour(0.2).on_tick(fleet(0.8))
    assert proposal.action == ChangeKnob(knob="upload_bytes_per_s", value=round(LIMIT, 1))
    assert proposal.gain_gpu_s == pytest.approx(96.0 * 0.6 * 4)
    fails = -math.expm1(-(540.0 - 96.0) * 2 * 10.0 / 600.0**2)
    assert proposal.cost_gpu_s == pytest.approx(fails * 600.0 * 4)
    assert proposal.net_gpu_s > 0
    assert proposal.reason == (
        "an upload (1.2 GB) takes 96 s of a network that is 80% busy: 307 GPU-s, and usually 77; "
        "an upload until the next checkpoint risks 600 s of work with probability 0.024: 58 GPU-s"
    )


@pytest.mark.slow
def test_a_network_that_is_always_this_busy_leads_to_no_limit():
    assert not values(after_an_hour(0.8), fleet(0.8))


@pytest.mark.slow
def test_the_limit_is_lifted_once_the_network_load_is_usual():
    uploads = after_an_hour(0.2)
    assert not values(uploads, fleet(0.8, 1, limit=LIMIT))
    (proposal,) = uploads.on_tick(fleet(0.2, 2, limit=LIMIT))
    assert proposal.action.value == 0
    assert proposal.net_gpu_s > 0


@pytest.mark.slow
def test_a_cost_between_setting_and_lifting_changes_nothing():
    uploads = after_an_hour(0.2)
    assert not values(uploads, fleet(0.45, 1))
    assert not values(uploads, fleet(0.45, 2, limit=LIMIT))


@pytest.mark.slow
def test_a_forecast_failure_keeps_uploads_fast_and_lifts_the_limit():
    hazard = {"w1": 0.5}
    uploads = after_an_hour(0.2, predictor="trend")
    assert not values(uploads, fleet(0.8, 1, hazard=hazard))
    (proposal,) = uploads.on_tick(fleet(0.8, 2, limit=LIMIT, hazard=hazard))
    assert (proposal.action.value, proposal.cause) == (0, ("f1",))
    assert proposal.net_gpu_s > 0


@pytest.mark.slow
def test_the_same_limit_is_not_proposed_again_for_a_while():
    uploads = after_an_hour(0.2, again_s=60.0)
    assert [bool(values(uploads, fleet(0.8, tick))) for tick in range(8)] == [
        *[True, False, False, False, False, False],
        *[True, False],
    ]


@pytest.mark.slow
def test_another_interval_is_another_limit():
    uploads = after_an_hour(0.2)
    (value,) = values(uploads, fleet(0.8, 1, limit=LIMIT, interval_s=1200.0))
    assert value == pytest.approx(LIMIT / 2, abs=0.1)


@pytest.mark.slow
def test_the_tier_that_saves_most_often_sets_the_limit():
    memory = KnobSpec(name="checkpoint_memory_interval_s", kind="float", low=1.0)
    shown = {"knob_specs": [*SPECS, memory], "more_values": {memory.name: 300.0}}
    shown["felt"] = {"checkpoint_memory_felt_s": 0.1}
    (limit,) = values(after_an_hour(0.3, shown), fleet(0.9, **shown))
    assert limit == pytest.approx(2 * LIMIT, abs=0.1)


def test_the_interval_may_be_a_metric():
    reported = {"knob_specs": SPECS[:1], "reported_s": 600.0}
    assert values(after_an_hour(0.2), fleet(0.8, **reported)) == [round(LIMIT, 1)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "odd",
    [
        {"knob_specs": SPECS[1:]},
        {"knob_specs": SPECS[:1]},
        {"state_bytes": math.nan},
        {"costs": Costs(checkpoint_s=0.0)},
        {"state": "paused"},
        {"state_bytes": 1e10},  # takes longer than the interval as it is
    ],
)
def test_the_limit_stays_if_a_value_is_missing_or_there_is_no_gain(odd):
    assert not values(after_an_hour(0.2, odd), fleet(0.8, **odd))


finite = st.floats(1.0, 1e7)


@pytest.mark.slow
@given(st.lists(st.floats(0.0, 1.0), max_size=30), st.floats(0.0, 1.0), finite, finite, finite)
def test_every_proposal_pays_and_keeps_within_the_interval(
    shares, usual, interval_s, state_bytes, limit
):
    uploads = policy()
    for tick in range(-5, 0):
        list(uploads.on_tick(fleet(usual, tick)))
    for tick, share in enumerate(shares):
        view = fleet(share, tick, limit=limit, interval_s=interval_s, state_bytes=state_bytes)
        for proposal in uploads.on_tick(view):
            assert proposal.net_gpu_s > 0
            assert proposal.action.value == 0 or state_bytes / proposal.action.value <= interval_s
