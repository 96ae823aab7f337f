"""Each safety limit denies one proposal and allows another."""

from dataclasses import dataclass, field

import pytest

from tests.kernel.arbiter.situations import NOW_NS, Standing, arbiter, candidate, decide, granted
from torchloom_core.capabilities.alert import Alert
from torchloom_core.capabilities.checkpoint import SaveCheckpoint
from torchloom_core.capabilities.cordon import CordonNode
from torchloom_core.capabilities.drain import DrainGroup
from torchloom_core.capabilities.dump import CollectDump
from torchloom_core.capabilities.migrate import Migrate
from torchloom_core.capabilities.pause import PauseRun
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.live.dispatch.candidate import Candidate
from torchloom_core.live.kernel.arbiter.limits import POLICY_LIMITS
from torchloom_core.wire.actions import ChangeKnob
from torchloom_core.wire.decisions import Verdict
from torchloom_core.wire.plans import Granted
from torchloom_core.wire.requests import PERSON

MIGRATE = Migrate(group="g0")
DRAIN = DrainGroup(group="g0")
SAVE = SaveCheckpoint()
OLD_NS = NOW_NS - 301 * SECOND_NS


@dataclass
class Trial:
    rule: str
    passes: Candidate
    objects: Candidate
    reason: str
    config: str = ""
    standing: Standing = field(default_factory=Standing)
    past: tuple[Granted, ...] = ()


def moving(*groups: str) -> Standing:
    standing = Standing()
    for group in groups:
        (verdict,) = decide(arbiter("max_in_motion_share = 1"), [candidate(Migrate(group=group))])
        standing.start(verdict)
    return standing


TRIALS = [
    Trial(
        "expiry",
        candidate(SAVE, ts_ns=NOW_NS - 300 * SECOND_NS),
        candidate(SAVE, ts_ns=OLD_NS),
        "need an age of at most 300 s, was 301.0 s",
    ),
    Trial(
        "impossible",
        candidate(MIGRATE),
        candidate(Migrate(group="g1")),
        "no standby is left",
        standing=Standing(obstacles={"group:g1": "no standby is left"}),
    ),
    Trial(
        "forbidden_pair",
        candidate(MIGRATE, policy="sure"),
        candidate(MIGRATE, policy="rough"),
        "the config forbids rough to propose migrate",
        'forbidden = [{policy = "rough", action = "migrate"}]',
    ),
    Trial(
        "low_confidence",
        candidate(MIGRATE, confidence=0.8),
        candidate(MIGRATE, confidence=0.79),
        "migrate needs confidence >= 0.8, was 0.79",
        "[arbiter.actions.migrate]\nmin_confidence = 0.8",
    ),
    Trial(
        "in_progress",
        candidate(Migrate(group="g1")),
        candidate(DRAIN),
        "p1.1 is under way on group:g0",
        "max_in_motion_share = 1",
        moving("g0"),
    ),
    Trial(
        "cooldown",
        candidate(Migrate(group="g1")),
        candidate(MIGRATE),
        "need 60 s after the last migrate of group:g0, was 59.0 s",
        past=(granted(MIGRATE, 59.0), granted(Migrate(group="g1"), 60.0)),
    ),
    Trial(
        "cooldown",
        candidate(Migrate(group="g1")),
        candidate(MIGRATE),
        "need 60 s after the last migrate of group:g0, was 59.9 s",
        past=(granted(MIGRATE, 59.97), granted(Migrate(group="g1"), 60.0)),
    ),
    Trial(
        "rate_limit",
        candidate(Migrate(group="g1")),
        candidate(SAVE),
        "need fewer than 2 checkpoint an hour, was 2",
        "[arbiter.actions.checkpoint]\nlimit_per_hour = 2",
        past=(granted(SAVE, 100.0), granted(SAVE, 3599.0), granted(SAVE, 3600.0)),
    ),
    Trial(
        "budget",
        candidate(SAVE, cost_gpu_s=40.0),
        candidate(SAVE, cost_gpu_s=41.0),
        "need at most 100 GPU-s of checkpoint an hour, would be 101",
        "[arbiter.actions.checkpoint]\nbudget_gpu_s_per_hour = 100",
        past=(
            granted(SAVE, 100.0, cost_gpu_s=60.0),
            granted(SAVE, 3600.0, cost_gpu_s=9.0),
            granted(MIGRATE, 100.0, cost_gpu_s=90.0),
        ),
    ),
    Trial(
        "breaker",
        candidate(SAVE),
        candidate(Migrate(group="g3")),
        "need fewer than 3 failed actions in 300 s, was 3",
        past=tuple(granted(Migrate(group="g0"), 100.0 + n, failed=True) for n in range(3)),
    ),
    Trial(
        "breaker",
        candidate(PauseRun()),
        candidate(Migrate(group="g2")),
        "need at most 50% of 4 groups moved in 300 s, would be 3",
        past=(granted(Migrate(group="g0"), 100.0), granted(DrainGroup(group="g1"), 100.0)),
    ),
    Trial(
        "quorum_minimum",
        candidate(MIGRATE),
        candidate(DRAIN),
        "need at least 4 groups left training, would be 3",
        "min_groups = 4",
    ),
    Trial(
        "in_motion_share",
        candidate(SAVE),
        candidate(DRAIN),
        "need at most 34% of 4 groups in motion, would be 2",
        standing=moving("g1"),
    ),
    Trial(
        "cordoned_share",
        candidate(CordonNode(node="n1")),
        candidate(CordonNode(node="n3")),
        "need at most 10% of 20 nodes cordoned, would be 3",
        standing=Standing(marked=frozenset({"n1", "n2"})),
    ),
    Trial(
        "no_gain",
        candidate(MIGRATE, gain_gpu_s=10.0, confidence=0.5, cost_gpu_s=4.9),
        candidate(MIGRATE, gain_gpu_s=10.0, confidence=0.5, cost_gpu_s=5.0),
        "need a net gain > 0 GPU-s, was 0.0",
    ),
]


def judge(trial: Trial, proposed: Candidate) -> Verdict:
    tested = arbiter(trial.config)
    tested.restore(trial.past, NOW_NS)
    before = dict(trial.standing.under_way)
    (verdict,) = decide(tested, [proposed], trial.standing)
    trial.standing.under_way = before
    return verdict


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.rule)
def test_a_limit_denies_under_its_name(trial):
    verdict = judge(trial, trial.objects)
    assert (verdict.granted, verdict.rule) == (False, trial.rule)
    assert verdict.reason == trial.reason


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.rule)
def test_a_limit_allows_a_proposal_within_it(trial):
    verdict = judge(trial, trial.passes)
    assert (verdict.granted, verdict.rule) == (True, "net_gain"), verdict.reason


def test_the_kill_switch_denies_policies_and_people():
    stopped = Standing(stopped=True)
    for policy in ("p", PERSON):
        for action in (MIGRATE, SAVE, Alert(worker="w", text="x"), CollectDump(worker="w")):
            (verdict,) = decide(arbiter(), [candidate(action, policy=policy)], stopped)
            assert (verdict.granted, verdict.rule) == (False, "kill_switch")
            assert verdict.reason == "actions are stopped: resume them first"


def test_the_kill_switch_is_the_first_reason_of_several():
    stopped = Standing(stopped=True, obstacles={"group:g0": "no standby is left"})
    for policy in ("p", PERSON):
        (verdict,) = decide(arbiter(), [candidate(MIGRATE, policy=policy, ts_ns=0)], stopped)
        assert verdict.rule == "kill_switch"


@pytest.mark.parametrize("rule", ["limit_per_hour = 1", "budget_gpu_s_per_hour = 10"])
def test_rates_and_budgets_count_one_hour_of_stored_grants(rule):
    text = (
        f"cooldown_s = 0\n[arbiter.breaker]\nwindow_s = 7_200\n[arbiter.actions.checkpoint]\n{rule}"
    )
    for ago_s, fits in ((3_600.0, True), (3_599.0, False)):
        tested = arbiter(text)
        tested.restore([granted(SAVE, ago_s, cost_gpu_s=6.0)], NOW_NS)
        (verdict,) = decide(tested, [candidate(SAVE, cost_gpu_s=6.0)])
        assert verdict.granted == fits


def test_every_limit_of_a_policy_is_tested_here():
    tried = {trial.rule for trial in TRIALS} | {"kill_switch"}
    assert tried == {limit.__name__ for limit in POLICY_LIMITS}


PERSONS = {"expiry", "impossible", "in_progress", "quorum_minimum", "in_motion_share"}


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.rule)
def test_a_person_is_bound_only_by_limits_that_protect_the_run(trial):
    mine = Candidate(
        candidate(trial.objects.proposed.proposal.action, policy=PERSON, gain_gpu_s=0.0).proposed,
        "act",
        trial.objects.ts_ns,
    )
    verdict = judge(trial, mine)
    assert verdict.granted == (trial.rule not in PERSONS)
    assert verdict.rule == (trial.rule if trial.rule in PERSONS else "person")


def test_a_forbidden_pair_denies_one_kind_of_action():
    tested = arbiter('forbidden = [{policy = "rough", action = "migrate"}]')
    (verdict,) = decide(tested, [candidate(DRAIN, policy="rough")])
    assert verdict.granted


def test_a_cooldown_applies_to_one_action_on_its_target():
    tested = arbiter()
    tested.restore([granted(MIGRATE, 1.0)], NOW_NS)
    assert decide(tested, [candidate(DRAIN)])[0].granted


def test_failures_of_actions_that_move_nothing_do_not_open_the_breaker():
    tested = arbiter()
    tested.restore([granted(SAVE, 100.0 + number, failed=True) for number in range(3)], NOW_NS)
    assert decide(tested, [candidate(MIGRATE)])[0].granted


def test_only_groups_count_as_moved():
    tested = arbiter()
    tested.restore([granted(PauseRun(), 100.0), granted(MIGRATE, 100.0)], NOW_NS)
    assert decide(tested, [candidate(Migrate(group="g1"))])[0].granted


def test_without_training_groups_the_moved_share_is_zero():
    tested = arbiter()
    tested.restore([granted(MIGRATE, 100.0)], NOW_NS)
    assert decide(tested, [candidate(Migrate(group="g1"))], Standing(groups=0))[0].granted


def test_one_node_may_always_be_cordoned():
    for marked, fits in ((frozenset(), True), (frozenset({"n1"}), False)):
        wanted = [candidate(CordonNode(node="n0"))]
        (verdict,) = decide(arbiter("max_cordoned_share = 0"), wanted, Standing(marked=marked))
        assert verdict.granted == fits


def test_an_alert_needs_no_gain():
    (verdict,) = decide(arbiter(), [candidate(Alert(worker="w", text="x"), gain_gpu_s=0.0)])
    assert verdict.granted


def test_one_group_may_always_move():
    tested = arbiter("max_in_motion_share = 0\n[arbiter.breaker]\nmax_moved_share = 0")
    first, second = decide(tested, [candidate(MIGRATE, 1), candidate(Migrate(group="g1"), 2)])
    assert (first.granted, second.rule) == (True, "breaker")


def test_a_share_is_counted_in_whole_groups_without_float_noise():
    tested = arbiter("max_in_motion_share = 0.29\n[arbiter.breaker]\nmax_moved_share = 1")
    wanted = [candidate(Migrate(group=f"g{n}"), n) for n in range(100)]
    assert sum(v.granted for v in decide(tested, wanted, Standing(groups=100))) == 29


@pytest.mark.parametrize(
    ("config", "ago_s"),
    [
        ("[arbiter.actions.migrate]\ncooldown_s = 200_000", 199_999.0),
        ("cooldown_s = 7_200", 7_199.0),
    ],
)
def test_a_cooldown_of_hours_or_days_is_enforced(config, ago_s):
    tested = arbiter(config)
    tested.restore([granted(MIGRATE, ago_s)], NOW_NS)
    (verdict,) = decide(tested, [candidate(MIGRATE)])
    assert verdict.rule == "cooldown"


def test_a_breaker_looks_back_over_more_than_an_hour_where_its_window_is_longer():
    tested = arbiter("[arbiter.breaker]\nfailures = 1\nwindow_s = 7_200")
    tested.restore([granted(MIGRATE, 7_199.0, failed=True)], NOW_NS)
    (verdict,) = decide(tested, [candidate(Migrate(group="g1"))])
    assert verdict.rule == "breaker"


def test_grants_that_no_limit_needs_are_dropped():
    tested = arbiter()
    tested.restore([granted(MIGRATE, 3601.0), granted(SAVE, 3599.0)], NOW_NS)
    decide(tested, [])
    assert [grant.action for grant in tested.grants.values()] == ["checkpoint"]


def test_a_knob_and_a_group_are_different_targets():
    knob = ChangeKnob(knob="lr", value=0.1)
    assert all(v.granted for v in decide(arbiter(), [candidate(knob, 1), candidate(MIGRATE, 2)]))
