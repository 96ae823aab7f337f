from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.capabilities.alert import Alert
from torchloom_core.capabilities.cordon import CordonNode
from torchloom_core.capabilities.migrate import Migrate
from torchloom_core.lab.evaluate.arm import mean_verdicts, verdicts_of
from torchloom_core.wire.decisions import Verdict

NODE = st.sampled_from(("n0", "n1", "n2"))
ACTION = st.one_of(
    NODE.map(lambda node: CordonNode(node=node)),
    NODE.map(lambda node: Migrate(group=f"g-{node}")),
    NODE.map(lambda node: Alert(worker="w0", text=f"{node} is hot")),
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


@given(VERDICTS)
def test_every_proposal_is_granted_or_denied_by_one_rule(verdicts):
    operations = verdicts_of(verdicts)
    assert operations.proposed == len(verdicts)
    assert sum(operations.granted.values()) + sum(operations.denied.values()) == len(verdicts)
    assert sum(operations.cordons.values()) == operations.granted.get("cordon", 0.0)
    assert operations.why_denied == {rule: f"because of {rule}" for rule in operations.denied}


@given(VERDICTS)
def test_each_granted_alert_is_stored_once(verdicts):
    granted = [one.action for one in verdicts if one.granted]
    texts = [action.text for action in granted if isinstance(action, Alert)]
    assert verdicts_of(verdicts).alerts == tuple(dict.fromkeys(texts))


def test_only_the_first_alerts_are_stored():
    alerts = [verdict(Alert(worker="w0", text=f"{n} K")) for n in range(100)]
    runs = [verdicts_of(alerts), verdicts_of(alerts[50:])]
    assert mean_verdicts(runs).alerts == runs[0].alerts == tuple(f"{n} K" for n in range(5))


@given(st.lists(VERDICTS, min_size=1, max_size=4))
def test_the_mean_over_runs_is_the_count_over_all_by_their_number(runs):
    together = verdicts_of([one for run in runs for one in run])
    mean = mean_verdicts([verdicts_of(run) for run in runs])
    assert mean.proposed * len(runs) == together.proposed
    for name in ("granted", "denied", "cordons"):
        scaled = {key: round(n * len(runs)) for key, n in getattr(mean, name).items()}
        assert scaled == getattr(together, name)
