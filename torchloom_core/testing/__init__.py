"""Contract tests and views for the tests of plugins.

Subclass the contract in your tests, and build views of your own with :func:`view_of`::

    from torchloom_core.testing import PolicyContract, view_of

    class TestMyPolicy(PolicyContract):
        policy_class = MyPolicy
        options = {"ratio": 2.0}

    def test_a_hot_worker_is_reported():
        policy = MyPolicy(MyPolicy.Options())
        view = view_of({"gpu_temp_celsius": [60.0, 61.0, 99.0]})
        assert [p.action.worker for p in policy.on_tick(view)] == ["w2"]

For a predictor that learns, subclass ``LearnerContract``, which includes the other tests; for an
effector ``EffectorContract``, for a collector ``CollectorContract``, for an importer
``ImporterContract``, for a capability ``CapabilityContract``, for a storage of checkpoints
``StorageContract``.
"""

from torchloom_core.testing.capability_contract import CapabilityContract
from torchloom_core.testing.collector_contract import CollectorContract
from torchloom_core.testing.effector_contract import EffectorContract
from torchloom_core.testing.importer_contract import ImporterContract
from torchloom_core.testing.learner_contract import LearnerContract
from torchloom_core.testing.policy_contract import PolicyContract
from torchloom_core.testing.predictor_contract import PredictorContract
from torchloom_core.testing.small_run import hellos
from torchloom_core.testing.storage_contract import StorageContract
from torchloom_core.testing.views import LinkSample, view_of

__all__ = [
    "CapabilityContract",
    "CollectorContract",
    "EffectorContract",
    "ImporterContract",
    "LearnerContract",
    "LinkSample",
    "PolicyContract",
    "PredictorContract",
    "StorageContract",
    "hellos",
    "view_of",
]
