"""Which proposals win or wait, and invariants for any proposals."""

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernel.arbiter.situations import NOW_NS, Standing, arbiter, candidate, decide
from torchloom_core.capabilities.checkpoint import SaveCheckpoint
from torchloom_core.capabilities.drain import DrainGroup
from torchloom_core.capabilities.migrate import Migrate
from torchloom_core.capabilities.pause import PauseRun
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.live.dispatch.candidate import Candidate
from torchloom_core.live.kernel.actions.kinds import kind_named, target_of
from torchloom_core.wire.capabilities import installed
from torchloom_core.wire.requests import PERSON

MIGRATE = Migrate(group="g0")
DRAIN = DrainGroup(group="g0")
APPROVAL = "[arbiter.actions.migrate]\napproval = true"

actions: st.SearchStrategy[Any] = st.one_of(
    st.builds(Migrate, group=st.sampled_from([f"g{n}" for n in range(6)])),
    st.builds(DrainGroup, group=st.sampled_from([f"g{n}" for n in range(6)])),
    st.builds(SaveCheckpoint),
    st.builds(PauseRun),
)
offers = st.lists(
    st.tuples(
        actions,
        st.sampled_from([0.0, 1.0, 5.0, 9.0]),
        st.sampled_from([0.0, 0.5, 4.0]),
        st.sampled_from([1.0, 0.5]),
        st.sampled_from(["act", "act", "dry_run", "shadow"]),
    ),
    max_size=12,
).map(
    lambda rows: [
        candidate(action, n, gain_gpu_s=gain, cost_gpu_s=cost, confidence=sure, mode=mode)
        for n, (action, gain, cost, sure, mode) in enumerate(rows)
    ]
)


@given(offers=offers)
def test_nothing_is_granted_while_stopped(offers):
    verdicts = decide(arbiter(), offers, Standing(stopped=True))
    assert not any(verdict.granted for verdict in verdicts)
    assert len(verdicts) == len(offers)


@given(offers=offers, share=st.floats(0, 1), groups=st.integers(1, 6))
def test_one_grant_per_target_within_the_motion_limit_and_a_rule_in_every_verdict(
    offers, share, groups
):
    tested = arbiter(f"max_in_motion_share = {share}\n[arbiter.breaker]\nmax_moved_share = 1")
    standing = Standing(groups=groups)
    verdicts = decide(tested, offers, standing)
    targets = Counter(target_of(v.action) for v in verdicts if v.granted)
    assert set(targets.values()) <= {1}
    moving = standing.groups_in_motion() & standing.training_groups()
    assert len(moving) <= max(1, int(share * groups + 1e-9))
    assert sorted(v.proposal for v in verdicts) == sorted(o.proposed.id for o in offers)
    assert all(verdict.rule and verdict.reason for verdict in verdicts)


@given(offers=offers, order=st.randoms(use_true_random=False))
def test_the_order_in_which_proposals_come_in_does_not_matter(offers, order: random.Random):
    other = list(offers)
    order.shuffle(other)
    tested = "holdout = 0.3\nmax_in_motion_share = 0.5"
    assert decide(arbiter(tested), offers) == decide(arbiter(tested), other)


@given(offers=offers)
def test_the_best_grantable_proposal_for_a_target_wins(offers):
    verdicts = decide(arbiter("min_groups = 0\nmax_in_motion_share = 1"), offers)
    mode = {offer.proposed.id: offer.mode for offer in offers}
    for winner in (v for v in verdicts if v.granted):
        rivals = [
            v
            for v in verdicts
            if mode[v.proposal] == "act" and target_of(v.action) == target_of(winner.action)
        ]
        for rival in rivals:
            better = rival.net_gpu_s > winner.net_gpu_s
            assert not better or rival.rule not in {"outbid", "net_gain"}


@given(offers=offers)
def test_shadow_and_dry_run_send_nothing_and_shadow_has_no_influence(offers):
    verdicts = decide(arbiter(), offers)
    by_mode = {offer.proposed.id: offer.mode for offer in offers}
    assert all(by_mode[v.proposal] == "act" for v in verdicts if v.granted)
    seen = [offer for offer in offers if offer.mode != "shadow"]
    assert [v for v in verdicts if by_mode[v.proposal] != "shadow"] == decide(arbiter(), seen)
    for verdict in verdicts:
        if by_mode[verdict.proposal] == "shadow":
            assert verdict.rule == "shadow"
            assert verdict.reason.startswith("would be ")


@given(offers=offers)
def test_in_dry_run_nothing_is_sent_and_something_would_win_for_the_same_targets(offers):
    acting = [offer for offer in offers if offer.mode == "act"]
    # More win than could start at once, and the breaker counts them all.
    breaker = "[arbiter.breaker]\nmax_moved_share = 1.0"
    verdicts = decide(arbiter(f"dry_run = true\n{breaker}"), acting)
    assert not any(verdict.granted for verdict in verdicts)
    granted = [v for v in decide(arbiter(breaker), acting) if v.granted]
    would = [v for v in verdicts if v.reason.startswith("would be granted")]
    assert {v.rule for v in would} <= {"dry_run"}
    # An action that is not started blocks none: at least as many targets are won.
    assert {target_of(v.action) for v in granted} <= {target_of(v.action) for v in would}


def test_the_higher_net_gain_wins_and_ids_break_ties():
    poor, rich = candidate(MIGRATE, 1), candidate(DrainGroup(group="g0"), 2, gain_gpu_s=101.0)
    first, second = decide(arbiter(), [poor, rich])
    assert (first.proposal, first.granted) == ("p1.2", True)
    assert (second.rule, second.reason) == ("outbid", "p1.2 has a higher net gain")
    first, _ = decide(arbiter(), [candidate(MIGRATE, 2), candidate(MIGRATE, 1)])
    assert first.proposal == "p1.1"


@pytest.mark.parametrize("price", [{"cost_gpu_s": 150.0}, {"confidence": 0.2}])
def test_a_higher_gain_with_a_lower_net_gain_is_outbid(price):
    promising = candidate(MIGRATE, 1, gain_gpu_s=200.0, **price)
    worthy = candidate(DrainGroup(group="g0"), 2, gain_gpu_s=100.0)
    first, second = decide(arbiter(), [promising, worthy])
    assert (first.proposal, first.granted) == ("p1.2", True)
    assert (second.rule, second.reason) == ("outbid", "p1.2 has a higher net gain")


def test_a_denied_better_proposal_leaves_the_target_to_the_next():
    tested = arbiter("[arbiter.actions.migrate]\nlimit_per_hour = 0")
    better, worse = candidate(MIGRATE, 1), candidate(DrainGroup(group="g0"), 2, gain_gpu_s=1.0)
    assert [v.rule for v in decide(tested, [better, worse])] == ["rate_limit", "net_gain"]


# --- the no-op as an arm ---


def arms(seed: int) -> list[tuple[str, float]]:
    tested = arbiter(f"holdout = 0.25\nseed = {seed}\ncooldown_s = 0")
    verdicts = []
    for number in range(400):
        verdicts += decide(tested, [candidate(SaveCheckpoint(), number)])
    return [(verdict.rule, verdict.propensity) for verdict in verdicts]


def test_the_no_op_is_drawn_with_the_configured_probability_and_logged():
    drawn = arms(7)
    assert set(drawn) == {("net_gain", 0.75), ("holdout", 0.25)}
    assert 70 <= drawn.count(("holdout", 0.25)) <= 130


def test_the_draw_depends_on_the_seed():
    assert arms(7) == arms(7) != arms(8)


def test_the_target_of_a_no_op_stays_reserved():
    tested = arbiter("holdout = 1.0")
    first, second = decide(tested, [candidate(MIGRATE, 1), candidate(MIGRATE, 2, gain_gpu_s=1.0)])
    assert (first.rule, first.propensity, second.rule) == ("holdout", 1.0, "outbid")
    assert (first.reason, second.propensity) == ("the no-op was drawn", 1.0)


# --- approval by a person ---


def wait_for_a_person(text: str = APPROVAL, **changes: Any) -> Any:
    tested = arbiter(text)
    (verdict,) = decide(tested, [candidate(MIGRATE, 1, **changes)])
    assert (verdict.granted, verdict.rule) == (False, "approval")
    return tested


def test_a_proposal_that_needs_approval_waits_until_a_person_approves():
    tested = wait_for_a_person()
    verdict = tested.approve("p1.1", "alice", Standing(), NOW_NS + SECOND_NS)
    assert (verdict.granted, verdict.rule, verdict.propensity) == (True, "person", 1.0)
    assert verdict.reason.endswith("; approved by alice")
    assert tested.waiting == {}


def test_an_approved_proposal_is_not_subject_to_the_holdout():
    tested = wait_for_a_person(f"holdout = 1.0\n{APPROVAL}")
    assert tested.approve("p1.1", "alice", Standing(), NOW_NS).granted


def test_a_persons_own_request_needs_no_approval():
    (verdict,) = decide(arbiter(APPROVAL), [candidate(MIGRATE, policy=PERSON)])
    assert (verdict.granted, verdict.rule) == (True, "person")


def test_a_person_comes_before_any_policy_and_a_shadow_after_all():
    shadow = candidate(MIGRATE, 1, mode="shadow", gain_gpu_s=300.0)
    policy = candidate(DrainGroup(group="g0"), 2, gain_gpu_s=200.0)
    person = candidate(MIGRATE, 3, policy=PERSON, gain_gpu_s=0.0)
    first, second, third = decide(arbiter(), [shadow, policy, person])
    assert (first.proposal, first.rule) == ("p1.3", "person")
    assert (second.proposal, second.rule) == ("p1.2", "outbid")
    assert third.reason == "would be denied by in_progress: p1.3 is under way on group:g0"


def test_a_proposal_without_approval_expires_with_a_verdict():
    tested = wait_for_a_person(expires_s=5.0)
    assert tested.expired(NOW_NS + 5 * SECOND_NS) == []
    (verdict,) = tested.expired(NOW_NS + 5 * SECOND_NS + 1)
    assert (verdict.proposal, verdict.granted, verdict.rule) == ("p1.1", False, "expiry")
    assert verdict.reason == "not approved in time"
    assert tested.expired(NOW_NS + 99 * SECOND_NS) == []


def test_an_approval_is_checked_against_the_present_limits():
    tested = wait_for_a_person()
    verdict = tested.approve("p1.1", "alice", Standing(stopped=True), NOW_NS)
    assert (verdict.granted, verdict.rule) == (False, "kill_switch")


def test_a_persons_no_lasts_for_the_cooldown_unless_the_confidence_rises():
    tested = wait_for_a_person(confidence=0.8)
    assert tested.refuse("p1.1", "not now", NOW_NS).rule == "person"
    for policy, confidence, after_s, rule in (
        ("p", 0.8, 59.99, "cooldown"),
        ("p", 0.8, 60.0, "approval"),
        ("p", 0.81, 3.0, "approval"),
        ("other", 0.8, 3.0, "approval"),
    ):
        now_ns = NOW_NS + round(after_s * SECOND_NS)
        repeat = candidate(MIGRATE, 2, policy=policy, confidence=confidence, ts_ns=now_ns)
        (verdict,) = decide(tested, [repeat], now_ns=now_ns)
        assert verdict.rule == rule
        if rule == "cooldown":
            assert verdict.reason == "need 60 s after a person denied it, was 59.9 s"
        else:
            tested.withdraw("p1.2", "lapsed", "")


def test_only_one_proposal_per_target_waits():
    tested = wait_for_a_person()
    (verdict,) = decide(tested, [candidate(MIGRATE, 2)])
    assert (verdict.rule, verdict.reason) == ("approval", "p1.1 already waits for approval")
    assert list(tested.waiting) == ["p1.1"]


@pytest.mark.parametrize(
    ("text", "mode", "rule"), [(APPROVAL, "act", "approval"), ("", "dry_run", "dry_run")]
)
def test_waiting_and_dry_run_proposals_outbid_as_granted_ones_do(text, mode, rule):
    better, worse = candidate(MIGRATE, 1, mode=mode), candidate(DRAIN, 2, gain_gpu_s=1.0)
    assert [v.rule for v in decide(arbiter(text), [better, worse])] == [rule, "outbid"]


def test_proposals_for_two_targets_both_wait():
    tested = wait_for_a_person()
    decide(tested, [candidate(Migrate(group="g1"), 2)])
    assert list(tested.waiting) == ["p1.1", "p1.2"]


def test_a_shadow_never_waits():
    tested = arbiter(APPROVAL)
    decide(tested, [candidate(MIGRATE, 1, mode="shadow")])
    assert tested.waiting == {}


# --- the breaker ---


def test_the_breaker_opens_after_failures_and_closes_with_time():
    tested = arbiter("cooldown_s = 0\n[arbiter.breaker]\nfailures = 2\nmax_moved_share = 1")
    for number in range(2):
        (verdict,) = decide(tested, [candidate(MIGRATE, number)])
        assert verdict.granted
        tested.failed(verdict.proposal)
    (verdict,) = decide(tested, [candidate(MIGRATE, 3)])
    assert verdict.rule == "breaker"
    later_ns = NOW_NS + 300 * SECOND_NS
    fresh: Candidate = candidate(MIGRATE, 4, ts_ns=later_ns)
    assert decide(tested, [fresh], now_ns=later_ns)[0].granted


def test_the_breaker_denies_only_high_impact_actions():
    names = {name for name in installed() if kind_named(name).high_impact}
    assert names == {
        "assign_role",
        "drain",
        "evict",
        "knobs",
        "migrate",
        "pause",
        "regroup",
        "rewind",
        "suspend",
    }
