import msgspec
from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.evaluate.arm_results import Verdicts
from torchloom_core.evaluate.verdict_counts import VerdictCounts, mean_verdicts
from torchloom_core.wire.actions import Alert, CordonNode, Migrate
from torchloom_core.wire.events import Verdict

NODE = st.sampled_from(("n0", "n1", "n2"))
ACTION = st.one_of(
    NODE.map(lambda node: CordonNode(node=node)),
    NODE.map(lambda node: Migrate(group=f"g-{node}")),
    NODE.map(lambda node: Alert(worker=node, text="")),
)


def verdict(action, rule="granted"):
    return Verdict(
        proposal="p1",
        policy="lemon_nodes",
        action=action,
        granted=rule == "granted",
        rule=rule,
        reason=f"because of {rule}",
        net_gpu_s=0.0,
    )


VERDICTS = st.lists(
    st.builds(verdict, ACTION, st.sampled_from(("granted", "budget", "cordoned_share")))
)


def deeds_of(verdicts) -> Verdicts:
    ledger = VerdictCounts()
    for one in verdicts:
        ledger.enter(one)
    return ledger.deeds()


@given(VERDICTS)
def test_every_proposal_is_granted_or_denied_by_one_rule(verdicts):
    deeds = deeds_of(verdicts)
    assert deeds.proposed == len(verdicts)
    assert sum(deeds.granted.values()) + sum(deeds.denied.values()) == len(verdicts)
    assert sum(deeds.cordons.values()) == deeds.granted.get("cordon", 0.0)
    assert deeds.why_denied == {rule: f"because of {rule}" for rule in deeds.denied}


@given(st.lists(VERDICTS, min_size=1, max_size=4))
def test_the_mean_over_runs_is_the_count_over_all_by_their_number(runs):
    together = deeds_of([one for run in runs for one in run])
    mean = mean_verdicts([deeds_of(run) for run in runs])
    assert mean.proposed * len(runs) == together.proposed
    for name in ("granted", "denied", "cordons"):
        scaled = {key: round(n * len(runs)) for key, n in getattr(mean, name).items()}
        assert scaled == getattr(together, name)


@given(VERDICTS)
def test_deeds_are_the_same_bytes_when_they_were_written_and_read(verdicts):
    deeds = deeds_of(verdicts)
    data = msgspec.json.encode(deeds)
    assert msgspec.json.encode(msgspec.json.decode(data, type=Verdicts)) == data
