"""The public API for authors of policies, predictors and effectors.

A plugin is a module, named by an entry point in the group ``torchloom``, that registers
classes::

    from torchloom_core.plugin import FleetView, Need, Proposal, Registry, hookimpl

    class MyPolicy:
        name = "my_policy"

        class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
            ratio: float = 1.5

        def __init__(self, options: Options) -> None:
            self.needs = (Need("step_time_s", window_s=30),)

        def on_tick(self, view: FleetView) -> Iterable[Proposal]:
            ...

    @hookimpl
    def torchloom_register(registry: Registry) -> None:
        registry.policy(MyPolicy)

Policies and predictors use no clock, no I/O, no threads and no unseeded randomness: the same
view must give the same answer, live and in a backtest.
"""

from torchloom_core.capabilities.admit import AdmitGroup
from torchloom_core.capabilities.alert import Alert
from torchloom_core.capabilities.assign_role import AssignRole
from torchloom_core.capabilities.checkpoint import SaveCheckpoint
from torchloom_core.capabilities.cordon import CordonNode
from torchloom_core.capabilities.drain import DrainGroup
from torchloom_core.capabilities.dump import CollectDump
from torchloom_core.capabilities.evict import EvictGroup
from torchloom_core.capabilities.landscape import MapLandscape
from torchloom_core.capabilities.migrate import Migrate
from torchloom_core.capabilities.pause import PauseRun
from torchloom_core.capabilities.preview import PreviewChange
from torchloom_core.capabilities.probe import ProbeLinks
from torchloom_core.capabilities.regroup import RegroupWorkers
from torchloom_core.capabilities.resume import ResumeRun
from torchloom_core.capabilities.rewind import RewindRun
from torchloom_core.capabilities.suspend import SuspendRun
from torchloom_core.capabilities.uncordon import UncordonNode
from torchloom_core.config.ranges import NotNegative, Positive, Share
from torchloom_core.config.schema import Costs
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import ConfigError, ModelError, PluginError
from torchloom_core.interface.api import (
    Example,
    Hazard,
    Learner,
    Policy,
    Predictor,
    Registry,
    WithdrawingPolicy,
    hookimpl,
)
from torchloom_core.interface.arrays import Floats, Ints, grow
from torchloom_core.interface.checkpointing import (
    daly_s,
    ettr,
    expected_unsaved_s,
    tier_intervals_s,
    young_s,
)
from torchloom_core.interface.effector import Delivery, Effector, Subscription
from torchloom_core.interface.faults import incidents, places_of
from torchloom_core.interface.links import Links
from torchloom_core.interface.needs import (
    Need,
    NeedFaults,
    NeedForecast,
    NeedLabels,
    NeedNotes,
    NeedOffers,
    NeedPast,
    PolicyNeed,
    PredictorNeed,
)
from torchloom_core.interface.outlook import (
    UNSAVED_WORK,
    ActedOn,
    Outlook,
    Standbys,
    unsaved_work_s,
)
from torchloom_core.interface.programs import SplitProgram
from torchloom_core.interface.reserve import Reserve
from torchloom_core.interface.run_failures import RunFailures
from torchloom_core.interface.traffic import TRAFFIC_NEEDS, Traffic
from torchloom_core.interface.view import FleetView
from torchloom_core.interface.view_parts import LighthouseRows, Roster
from torchloom_core.wire.actions import Action, ChangeKnob, ChangeKnobs, Guard
from torchloom_core.wire.checkpoint_tiers import TIERS as CHECKPOINT_TIERS
from torchloom_core.wire.decisions import CordonOver, Notice, Outcome, Proposal, Verdict
from torchloom_core.wire.events import Fault, Forecast
from torchloom_core.wire.limits import MAX_ORDER, KnobValue
from torchloom_core.wire.messages import KnobSpec, Note
from torchloom_core.wire.placement import Placement

__all__ = [
    "CHECKPOINT_TIERS",
    "MAX_ORDER",
    "SECOND_NS",
    "TRAFFIC_NEEDS",
    "UNSAVED_WORK",
    "ActedOn",
    "Action",
    "AdmitGroup",
    "Alert",
    "AssignRole",
    "ChangeKnob",
    "ChangeKnobs",
    "CollectDump",
    "ConfigError",
    "CordonNode",
    "CordonOver",
    "Costs",
    "Delivery",
    "DrainGroup",
    "Effector",
    "EvictGroup",
    "Example",
    "Fault",
    "FleetView",
    "Floats",
    "Forecast",
    "Guard",
    "Hazard",
    "Ints",
    "KnobSpec",
    "KnobValue",
    "Learner",
    "LighthouseRows",
    "Links",
    "MapLandscape",
    "Migrate",
    "ModelError",
    "Need",
    "NeedFaults",
    "NeedForecast",
    "NeedLabels",
    "NeedNotes",
    "NeedOffers",
    "NeedPast",
    "NotNegative",
    "Note",
    "Notice",
    "Outcome",
    "Outlook",
    "PauseRun",
    "Placement",
    "PluginError",
    "Policy",
    "PolicyNeed",
    "Positive",
    "Predictor",
    "PredictorNeed",
    "PreviewChange",
    "ProbeLinks",
    "Proposal",
    "Registry",
    "RegroupWorkers",
    "Reserve",
    "ResumeRun",
    "RewindRun",
    "Roster",
    "RunFailures",
    "SaveCheckpoint",
    "Share",
    "SplitProgram",
    "Standbys",
    "Subscription",
    "SuspendRun",
    "Traffic",
    "UncordonNode",
    "Verdict",
    "WithdrawingPolicy",
    "daly_s",
    "ettr",
    "expected_unsaved_s",
    "grow",
    "hookimpl",
    "incidents",
    "places_of",
    "tier_intervals_s",
    "unsaved_work_s",
    "young_s",
]
