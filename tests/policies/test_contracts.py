"""Every built-in policy passes the contract test."""

import pytest

from tests.policies.pipelines import at_risk, offered
from tests.policies.test_node_leases import shared_node
from tests.policies.two_roles import TICKS, fleet
from torchloom_core.testing import PolicyContract
from torchloom_policies.allreduce_tuner import AllreduceTunerPolicy
from torchloom_policies.checkpoint_interval import CheckpointIntervalPolicy
from torchloom_policies.failure_forecast import FailureForecastPolicy
from torchloom_policies.hang import HangPolicy
from torchloom_policies.lemon_nodes import LemonNodesPolicy
from torchloom_policies.loss_guard import LossGuardPolicy
from torchloom_policies.membership import MembershipPolicy
from torchloom_policies.node_leases import NodeLeasesPolicy
from torchloom_policies.replan import ReplanPolicy
from torchloom_policies.role_balance import RoleBalancePolicy
from torchloom_policies.silence import SilencePolicy
from torchloom_policies.straggler import StragglerPolicy
from torchloom_policies.thresholds import ThresholdsPolicy
from torchloom_policies.uploads import UploadsPolicy

RULES = [
    {"metric": "gpu_temp_celsius", "level": 60.0, "for_s": 2.0, "clear": 55.0},
    {"metric": "gpu_temp_celsius", "level": 70.0, "action": "migrate", "gain_gpu_s": 100.0},
    {"metric": "loss", "level": 20.0, "comparison": "<", "action": "dump", "gain_gpu_s": 1.0},
    {
        "metric": "loss",
        "level": 52.0,
        "comparison": ">=",
        "action": {"knob": "lr", "value": 0.01},
        "gain_gpu_s": 1.0,
    },
]


class TestThresholds(PolicyContract):
    policy_class = ThresholdsPolicy
    options = {"rules": RULES}  # noqa: RUF012


class TestStraggler(PolicyContract):
    policy_class = StragglerPolicy
    options = {"patience": 2}  # noqa: RUF012


class TestSilence(PolicyContract):
    policy_class = SilencePolicy
    options = {"metrics": ["loss"], "metric_limit_s": 5.0, "one_by_one": 1}  # noqa: RUF012


class TestNodeLeases(PolicyContract):
    policy_class = NodeLeasesPolicy
    options = {"priority": {"urgent": 10, "batch": 1}}  # noqa: RUF012

    def views(self, seed=0):
        """Return views of a worker that comes to the node of another role, and goes."""
        ways = [("training", {}), ("paused", {"batch": "node_leases"})]
        return [
            shared_node(batch, suspended, urgent=urgent, now_s=1.7e9 + 60.0 * minute)
            for minute, (urgent, (batch, suspended)) in enumerate(
                [("gone", ways[0]), ("training", ways[0]), ("training", ways[1])]
                + 2 * [("gone", ways[1])]
            )
        ]


class TestRoleBalance(PolicyContract):
    policy_class = RoleBalancePolicy
    options = {"window_s": TICKS}  # noqa: RUF012

    def views(self, seed=0):
        """Return views with two roles, one of which waits."""
        waits = {"trainers_wait": 0.5 + seed / 10, "rollouts_wait": 0.1}
        return [fleet(4, 2, now_s=1.7e9 + after_s, **waits) for after_s in range(2 * TICKS)]


class TestReplan(PolicyContract):
    policy_class = ReplanPolicy
    options = {"predictor": "trend"}  # noqa: RUF012

    def views(self, seed=0):
        """Return views with a planned change that is possible, and a worker that may fail."""
        return [*(offered(600.0 + n, seed) for n in range(3)), at_risk(0.9)]


class TestHang(PolicyContract):
    policy_class = HangPolicy
    options = {"least_s": 1.0, "ratio": 1.0, "patience": 1, "memory_s": 30.0}  # noqa: RUF012


class TestFailureForecast(PolicyContract):
    policy_class = FailureForecastPolicy
    options = {"predictor": "trend"}  # noqa: RUF012


@pytest.mark.slow
class TestCheckpointInterval(PolicyContract):
    policy_class = CheckpointIntervalPolicy
    options = {"knob": "lr", "predictor": "trend"}  # noqa: RUF012


@pytest.mark.slow
class TestLemonNodes(PolicyContract):
    policy_class = LemonNodesPolicy
    options = {"ratio": 1.01, "min_probability": 0.1, "incident_s": 1.0}  # noqa: RUF012


@pytest.mark.slow
class TestMembership(PolicyContract):
    policy_class = MembershipPolicy
    options = {"quiet_s": 2.0, "again_s": 3.0}  # noqa: RUF012


@pytest.mark.slow
class TestAllreduceTuner(PolicyContract):
    policy_class = AllreduceTunerPolicy
    options = {"settle_steps": 1, "probe_every_s": 1.0}  # noqa: RUF012


@pytest.mark.slow
class TestLossGuard(PolicyContract):
    policy_class = LossGuardPolicy
    options = {  # noqa: RUF012
        "steps": ["skip", "clip", "rewind"],
        "least_values": 3,
        "band": 1.0,
        "patience_ticks": 1,
        "cooldown_s": 2.0,
    }


@pytest.mark.slow
class TestUploads(PolicyContract):
    policy_class = UploadsPolicy
    options = {  # noqa: RUF012
        "knob": "lr",
        "interval": "step_time_s",
        "predictor": "trend",
        "again_s": 2.0,
    }


CONTRACTS = [case for name, case in globals().items() if name.startswith("Test")]


@pytest.mark.parametrize("contract", [case for case in CONTRACTS if case is not TestAllreduceTuner])
def test_the_contract_views_make_every_builtin_policy_propose_something(contract):
    test = contract()
    assert any(test.run(test.views()))
