"""The table of knobs counts who has which value, of the run and of standbys apart."""

from torchloom_core.live.dashboard.live import knob_rows
from torchloom_core.wire.decisions import KnobDesired
from torchloom_core.wire.messages import KnobSpec
from torchloom_core.wire.operator import KnobTable

LR = KnobSpec(name="lr", kind="float", low=0.0)
MODE = KnobSpec(name="mode", kind="choice", choices=("a", "b"))
STEPS = KnobSpec(name="steps", kind="int")
SPECS = (LR, MODE, STEPS)


def rows(values, standbys=(), desired=()):
    table = KnobTable(specs=SPECS, desired=desired, values=values)
    return {row["name"]: row for row in knob_rows(table, standbys)}


def test_what_a_stand_by_has_is_not_counted_to_the_run():
    values = {"g0-0": {"lr": 0.1}, "g1-0": {"lr": 0.1}, "g2-0": {"lr": 0.05}, "g3-0": {"lr": 0.05}}
    lr = rows(values, standbys={"g2-0", "g3-0"})["lr"]
    assert (lr["values"], lr["standbys"]) == ([(0.1, 2)], [(0.05, 2)])


def test_a_whole_number_of_a_knob_that_takes_any_is_one_value_with_its_like():
    update = rows({"g0-0": {"lr": 3, "steps": 3}, "g1-0": {"lr": 3.0, "steps": 4}})
    assert update["lr"]["values"] == [(3.0, 2)]
    assert update["steps"]["values"] == [(3, 1), (4, 1)]


def test_a_row_says_whether_a_stand_by_tries_its_knob_out():
    update = knob_rows(KnobTable(specs=SPECS, tried=("lr",)), ())
    assert [row["has_preview"] for row in update] == [True, False, False]


def test_values_beyond_so_many_are_counted_together():
    lr = rows({f"g{n}-0": {"lr": float(n % 10)} for n in range(30)})["lr"]
    assert len(lr["values"]) == 8
    assert lr["others"] == 6


def test_what_a_worker_tells_of_another_kind_is_shown_as_it_is():
    update = rows({"g0-0": {"lr": "fast", "mode": "a"}, "g1-0": {}})
    assert update["lr"]["values"] == [("fast", 1)]
    assert (update["mode"]["values"], update["steps"]["values"]) == ([("a", 1)], [])


def test_desired_values_are_shown_for_all_and_for_one_worker():
    desired = (
        KnobDesired(knob="lr", value=0.2, worker=None, since_ns=10**9),
        KnobDesired(knob="lr", value=0.3, worker="g1-0", since_ns=3 * 10**9),
        KnobDesired(knob="mode", value=None, worker=None),
    )
    update = rows({}, desired=desired)
    assert update["lr"]["desired"] == {"": 0.2, "g1-0": 0.3}
    assert (update["lr"]["since_s"], update["mode"]["desired"]) == (3.0, {})


def test_a_knob_of_two_roles_has_a_row_of_each():
    own = KnobSpec(name="lr", kind="int")
    table = KnobTable(
        specs=(LR,),
        of_role={"trainer": (LR,), "rollout": (own,)},
        roles={"rollout-0-0": "rollout"},
        desired=(
            KnobDesired(knob="lr", value=0.1),
            KnobDesired(knob="lr", value=7, role="rollout"),
        ),
        values={"g0-0": {"lr": 0.1}, "rollout-0-0": {"lr": 5}},
    )
    found = [
        (row["role"], row["kind"], row["desired"], row["values"]) for row in knob_rows(table, ())
    ]
    assert found == [
        ("trainer", "float", {"": 0.1}, [(0.1, 1)]),
        ("rollout", "int", {"": 7}, [(5, 1)]),
    ]
