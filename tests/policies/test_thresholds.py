import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.plugin import (
    Alert,
    ChangeKnob,
    CollectDump,
    DrainGroup,
    Migrate,
    PauseRun,
    SaveCheckpoint,
)
from torchloom_core.testing import view_of
from torchloom_core.wire.messages import KnobSpec
from torchloom_policies.thresholds import REPORTED_ONE_BY_ONE, ThresholdsPolicy

NAN = float("nan")
METRIC = "gpu_temp_celsius"


def watch(**rule):
    table = {"rules": [{"metric": METRIC, "level": 90.0, **rule}]}
    return ThresholdsPolicy(msgspec.convert(table, ThresholdsPolicy.Options))


def ticks(policy, *columns, **view):
    """Show one column of values per second; return the proposals of each tick."""
    proposed = []
    for second, column in enumerate(columns):
        values = np.atleast_1d(np.asarray(column, dtype=float))
        at = view_of({METRIC: values}, now_s=1000.0 + second, **view)
        proposed.append(list(policy.on_tick(at)))
    return proposed


def fired(policy, *columns, **view):
    return [len(proposals) for proposals in ticks(policy, *columns, **view)]


def test_a_rule_fires_once_for_a_crossing_and_again_after_it_cleared():
    assert fired(watch(), 80, 91, 95, 91, 90, 92) == [0, 1, 0, 0, 0, 1]


def test_an_action_lapses_once_its_rule_is_cleared():
    policy = watch(action="migrate", gain_gpu_s=10.0)
    (proposal,) = ticks(policy, 91)[0]
    at = view_of({METRIC: np.asarray([91.0])}, now_s=1001.0)
    assert policy.lapsed(at, proposal) == ""
    ticks(policy, 80)
    assert policy.lapsed(at, proposal) == "every rule with this action has cleared"


def test_a_falling_rule_fires_below_its_level():
    rule = watch(comparison="<=", level=10.0, clear=20.0)
    assert fired(rule, 30, 10, 15, 10, 21, 9) == [0, 1, 0, 0, 0, 1]


def test_a_rule_works_for_workers_that_come_later():
    assert fired(watch(), [91], [91, 50], [91, 92, 93]) == [1, 0, 2]


def test_a_rule_can_fire_again_for_a_worker_that_returns():
    policy = watch()
    assert fired(policy, 91) == [1]
    assert fired(policy, 91, state="gone") == [0]
    assert fired(policy, 91) == [1]


def test_a_group_is_migrated_once_however_many_of_its_workers_are_hot():
    policy = watch(action="migrate", gain_gpu_s=100.0, cost_gpu_s=4.0, confidence=0.7)
    groups = ["a", "a", "b", "b"]
    first, second = ticks(policy, [91, 92, 50, 93], [91, 92, 94, 93], group=groups)
    assert [p.action for p in first] == [Migrate(group="a"), Migrate(group="b")]
    assert second == []
    assert (first[0].gain_gpu_s, first[0].cost_gpu_s, first[0].confidence) == (100.0, 4.0, 0.7)
    assert "w0 on n0: gpu_temp_celsius was 91, > 90" in first[0].reason


def test_a_rule_sets_how_long_its_proposal_waits_for_approval():
    ((proposal,),) = ticks(watch(action="migrate", gain_gpu_s=9.0, expires_s=20.0), [91])
    assert proposal.expires_s == 20.0
    ((proposal,),) = ticks(watch(action="migrate", gain_gpu_s=9.0), [91])
    assert proposal.expires_s == 300.0


def test_a_standby_is_not_moved_but_causes_an_alert():
    states = ["standby", "training"]
    assert fired(watch(action="migrate", gain_gpu_s=9.0), [91, 50], state=states) == [0]
    assert fired(watch(action="alert"), [91, 50], state=states) == [1]


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("alert", Alert(worker="w1", text="w1 on n1: gpu_temp_celsius was 91, > 90")),
        ("drain", DrainGroup(group="g1")),
        ("checkpoint", SaveCheckpoint()),
        ("pause", PauseRun()),
        ("dump", CollectDump(worker="w1")),
        ({"knob": "lr", "value": 0.5}, ChangeKnob(knob="lr", value=0.5, worker="w1")),
    ],
)
def test_a_rule_proposes_the_action_it_names(action, expected):
    ((proposal,),) = ticks(watch(action=action, gain_gpu_s=9.0), [50, 91])
    assert proposal.action == expected


def test_a_run_fenced_knob_is_set_on_all_at_once():
    policy = watch(action={"knob": "bits", "value": 8}, gain_gpu_s=9.0)
    bits = KnobSpec(name="bits", kind="int", fence="run")
    ((proposal,),) = ticks(policy, [91, 92], knob_specs=[bits])
    assert proposal.action == ChangeKnob(knob="bits", value=8, worker=None)


def test_a_whole_fleet_over_the_level_is_counted_not_listed():
    (proposals,) = ticks(watch(), np.full(12_000, 99.0))
    assert len(proposals) == REPORTED_ONE_BY_ONE + 1
    assert proposals[-1].reason.startswith(f"{12_000 - REPORTED_ONE_BY_ONE} more workers")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"clear": 95.0}, "need clear <= level 90, was 95"),
        ({"comparison": "<", "clear": 85.0}, "need clear >= level 90, was 85"),
        ({"action": "migrate"}, r"confidence x gain_gpu_s - cost_gpu_s > 0 .* was 0"),
        ({"comparison": "="}, "Invalid enum value '='"),
        ({"action": "reboot"}, "Invalid enum value 'reboot'"),
        ({"action": {"knob": "lr"}}, "missing required field `value`"),
        ({"level": NAN}, "Expected `float`"),
        ({"lvel": 1.0}, "unknown field `lvel`"),
    ],
)
def test_a_wrong_rule_is_refused_with_the_reason(rule, message):
    with pytest.raises(msgspec.ValidationError, match=message):
        watch(**rule)


@given(
    st.lists(st.sampled_from([80.0, 86.0, 91.0, NAN]), max_size=40),
    st.integers(min_value=0, max_value=3),
)
def test_between_two_firings_the_metric_always_cleared(values, for_s):
    """Compare with the same rule as a plain loop over one worker's values."""
    expected, run, armed = [], 0, True
    for value in values:
        run = run + 1 if value > 90 else 0
        if value <= 85:
            armed = True
        fires = armed and run > for_s
        armed = armed and not fires
        expected.append(int(fires))
    assert fired(watch(for_s=for_s, clear=85.0), *values) == expected
