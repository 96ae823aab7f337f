from torchloom_example import Example

from torchloom_core.testing import PolicyContract, view_of


class TestContract(PolicyContract):
    policy_class = Example
    options = {"limit_celsius": 50.5}  # the contract's fleet reaches it


def test_an_alert_is_raised_once():
    policy = Example(Example.Options())
    hot = view_of({"gpu_temp_celsius": [60.0, 90.0]})
    assert [proposal.action.worker for proposal in policy.on_tick(hot)] == ["w1"]
    assert list(policy.on_tick(hot)) == []
