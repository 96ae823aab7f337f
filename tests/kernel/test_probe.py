"""Links are probed in pairs, one action at a time; the fleet stores the measurements."""

import math

import msgspec
import pytest

from tests.kernel.runs import (
    Run,
    ScriptedPolicy,
    ack,
    active,
    can_be_probed,
    hello,
    make_kernel,
    of,
    only,
    probe_address,
    proposal,
)
from torchloom_core.capabilities.drain import DrainGroup
from torchloom_core.capabilities.probe import ProbeLinks
from torchloom_core.live.fleet.links import MAX_LINKS, MeasuredLinks
from torchloom_core.wire.decisions import Issue, Outcome, Reply, Verdict
from torchloom_core.wire.events import Control, Recovered
from torchloom_core.wire.links import Link, Measured
from torchloom_core.wire.operations import Probe

FAST = Measured(bytes_per_s=24.8e6, latency_s=0.0004, spread=0.1)
SLOW = Measured(bytes_per_s=1e6, latency_s=0.01)
AB, CD = ("a-0", "b-0"), ("c-0", "d-0")


def fleet(policy=None, config="") -> Run:
    policies = [active("policy", policy)] if policy else []
    run = Run(make_kernel(policies, config))
    for worker in (*AB, *CD):
        run.feed(can_be_probed(worker))
    return run


def probe(run, *pairs, probe_bytes=1 << 20):
    """Propose a probe and return its commands by sender."""
    outputs = run.ask(ProbeLinks(pairs=pairs, probe_bytes=probe_bytes))
    return {issue.command.worker: issue.command for issue in of(Issue, outputs)}


def refusal(run, *pairs):
    return only(Reply, run.ask(ProbeLinks(pairs=pairs))).text


def bytes_per_s(run, sender, receiver):
    view = run.kernel.fleet.view(run.now_ns, {})
    rows = [run.kernel.fleet.row_of[worker] for worker in (sender, receiver)]
    return view.links(rows).bytes_per_s[0, 1]


def test_each_sender_gets_its_receivers_probe_address_at_once():
    run = fleet()
    commands = probe(run, AB, CD, probe_bytes=700_000)
    assert {worker: command.do for worker, command in commands.items()} == {
        "a-0": Probe(receiver="b-0", probe_address=probe_address("b-0"), probe_bytes=700_000),
        "c-0": Probe(receiver="d-0", probe_address=probe_address("d-0"), probe_bytes=700_000),
    }


def test_a_measurement_is_seen_by_row_and_direction_with_its_age():
    run = fleet()
    run.ack(probe(run, AB)["a-0"], measured=FAST)
    run.tick(5.0)
    view = run.kernel.fleet.view(run.now_ns, {})
    links = view.links([1, 0])
    assert links.bytes_per_s[1, 0] == 24.8e6
    assert links.latency_s[1, 0] == 0.0004
    assert links.spread[1, 0] == 0.1
    assert links.age_s[1, 0] == 5.0
    for matrix in links:
        assert matrix.shape == (2, 2)
        assert math.isnan(matrix[0, 1])
        assert math.isnan(matrix[0, 0])
        assert math.isnan(matrix[1, 1])


def test_the_outcome_has_the_measurements_and_the_failures():
    run = fleet()
    commands = probe(run, AB, CD)
    run.ack(commands["a-0"], measured=FAST)
    run.ack(commands["c-0"], "failed", detail="could not be reached: Connection refused")
    outcome = run.all(Outcome)[-1]
    assert outcome.result == "partial"
    assert outcome.detail == (
        "a-0 -> b-0: 24.8 MB/s +- 10 %, 0.400 ms; "
        "c-0 -> d-0: failed: could not be reached: Connection refused"
    )


def test_a_probe_that_all_answer_is_done():
    run = fleet()
    commands = probe(run, AB, CD)
    run.ack(commands["a-0"], measured=FAST)
    run.ack(commands["c-0"], measured=FAST)
    assert run.all(Outcome)[-1].result == "done"


def test_a_probe_that_fails_leaves_the_old_value():
    run = fleet()
    run.ack(probe(run, AB)["a-0"], measured=FAST)
    run.ack(probe(run, AB)["a-0"], "failed", detail="no")
    assert bytes_per_s(run, *AB) == 24.8e6


@pytest.mark.parametrize("pair", [("a-0", "x-0"), ("x-0", "a-0")])
def test_an_unknown_worker_is_named(pair):
    assert "no worker is called 'x-0'" in refusal(fleet(), pair)


@pytest.mark.parametrize(
    "changes",
    [{"actuators": ("drain",)}, {"probe_address": None}, {"actuators": (), "probe_address": None}],
)
@pytest.mark.parametrize("pair", [("a-0", "e-0"), ("e-0", "a-0")])
def test_a_worker_that_cannot_be_probed_is_named(pair, changes):
    run = fleet()
    run.feed(can_be_probed("e-0", **changes))
    assert "worker e-0 cannot be probed: need TORCHLOOM_LINK_ADDRESS" in refusal(run, pair)


def test_a_worker_that_has_ended_is_named():
    run = fleet()
    run.exit("b-0")
    assert "worker b-0 has ended" in refusal(run, AB)


def test_probes_run_one_at_a_time_and_without_a_cooldown_for_other_pairs():
    policy = ScriptedPolicy()
    run = fleet(policy)
    commands = probe(run, AB)
    policy.next = [proposal(ProbeLinks(pairs=(CD,)))]
    denied = only(Verdict, run.tick())
    assert (denied.granted, denied.rule) == (False, "impossible")
    assert "is under way: need one probe at a time" in denied.reason
    run.ack(commands["a-0"], measured=FAST)
    policy.next = [proposal(ProbeLinks(pairs=(CD,)))]
    assert only(Verdict, run.tick()).granted


def test_a_sender_without_an_ack_blocks_other_probes_for_seconds_only():
    run = fleet()
    probe(run, AB)
    for _ in range(16):
        run.tick()
    outcome = run.all(Outcome)[-1]
    assert outcome.detail == "a-0 -> b-0: expired: no ack before its deadline"
    assert probe(run, CD)


def test_a_failed_probe_is_no_failure_to_the_circuit_breaker():
    policy = ScriptedPolicy()
    run = fleet(policy, "[arbiter.breaker]\nfailures = 1")
    run.ack(probe(run, AB)["a-0"], "failed", detail="no")
    policy.next = [proposal(DrainGroup(group="c"))]
    assert only(Verdict, run.tick()).granted


@pytest.mark.parametrize("config", ["[arbiter]\ndry_run = true", ""])
def test_in_dry_run_and_shadow_no_probe_is_sent(config):
    policy = ScriptedPolicy()
    run = Run(make_kernel([active("policy", policy, "act" if config else "shadow")], config))
    for worker in AB:
        run.feed(can_be_probed(worker))
    policy.next = [proposal(ProbeLinks(pairs=(AB,)))]
    outputs = run.tick()
    assert only(Verdict, outputs).reason == "would be granted: for the test"
    assert not of(Issue, outputs)


def test_an_answer_that_comes_twice_counts_once():
    run = fleet()
    commands = probe(run, AB)["a-0"]
    run.feed(ack(commands, "applied", measured=FAST))
    assert bytes_per_s(run, *AB) == 24.8e6
    run.feed(ack(commands, "applied", measured=SLOW))
    assert bytes_per_s(run, *AB) == 24.8e6


def test_a_new_incarnation_keeps_its_links_only_on_the_same_node():
    run = fleet()
    run.ack(probe(run, AB)["a-0"], measured=FAST)
    for worker in AB:
        run.exit(worker)
        run.feed(can_be_probed(worker, incarnation=2))
    assert bytes_per_s(run, *AB) == 24.8e6
    run.exit("b-0", incarnation=2)
    run.feed(can_be_probed("b-0", incarnation=3, node="elsewhere"))
    assert math.isnan(bytes_per_s(run, *AB))


def test_a_measurement_to_an_ended_incarnation_does_not_count():
    run = fleet()
    commands = probe(run, AB)["a-0"]
    run.feed(
        can_be_probed("b-0", incarnation=2, node="n2", probe_address=probe_address("b-0", "f" * 64))
    )
    run.ack(commands, measured=FAST)
    assert math.isnan(bytes_per_s(run, *AB))


def test_links_survive_a_restart_with_their_age():
    run = fleet()
    run.ack(probe(run, AB)["a-0"], measured=FAST)
    links = tuple(
        msgspec.json.decode(entry, type=Link)
        for key, entry in run.stored.items()
        if key.startswith("link.")
    )
    assert links == run.kernel.control().links
    after = Run(make_kernel(), now_ns=run.now_ns)
    after.feed(Recovered(epoch=2, control=Control(links=links)), 30.0)
    for worker in AB:
        after.feed(can_be_probed(worker))
    view = after.kernel.fleet.view(after.now_ns, {})
    assert view.links([0, 1]).bytes_per_s[0, 1] == 24.8e6
    assert view.links([0, 1]).age_s[0, 1] == 30.0
    after.feed(hello("a-0", incarnation=2, node="elsewhere"))
    assert math.isnan(bytes_per_s(after, *AB))


def test_of_too_many_links_the_oldest_is_dropped():
    links = MeasuredLinks()
    for number in range(MAX_LINKS + 1):
        links.add(_link(f"w{number % 300}", f"to{number // 300}", number))
        if number == 1:
            links.add(_link("w0", "to0", 1))  # measured again, so that w1's is the oldest
    assert len(links.table) == MAX_LINKS
    assert sum(map(len, links.of.values())) == MAX_LINKS
    assert "to0" in links.of["w0"]
    assert "to0" not in links.of["w1"]


def _link(sender, receiver, ts_ns):
    return Link(
        sender=sender, sender_node="n0", receiver=receiver, receiver_node="n1", measured=FAST,
        ts_ns=ts_ns,
    )  # fmt: skip
