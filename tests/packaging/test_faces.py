"""The names of the public API modules; a change of the API changes this test."""

import importlib
import re
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FACES = {
    "torchloom_core.plugin": """
        CHECKPOINT_TIERS MAX_ORDER SECOND_NS TRAFFIC_NEEDS UNSAVED_WORK
        ActedOn Action AdmitGroup Alert AssignRole ChangeKnob ChangeKnobs CollectDump ConfigError
        CordonNode
        CordonOver Costs Delivery DrainGroup Effector EvictGroup Example Fault FleetView Floats
        Forecast Guard Hazard Ints
        KnobSpec KnobValue
        Learner LighthouseRows Links MapLandscape Migrate ModelError Need NeedFaults NeedForecast
        NeedLabels NeedNotes NeedOffers NeedPast NotNegative Note Notice
        Outcome Outlook PauseRun Placement
        PluginError Policy PolicyNeed Positive Predictor PredictorNeed PreviewChange ProbeLinks
        Proposal Registry RegroupWorkers
        Reserve ResumeRun RewindRun Roster RunFailures SaveCheckpoint Share SplitProgram
        Standbys Subscription
        SuspendRun Traffic
        UncordonNode Verdict WithdrawingPolicy
        daly_s ettr expected_unsaved_s grow hookimpl incidents places_of tier_intervals_s
        unsaved_work_s young_s
    """,
    "torchloom_core.lab.learning": """
        FaultColumns Features FitSize GatheredLearner Gathering History MeasuredSteps Ranking
        Reasons RowLearner RowOptions RowSample Rows Scale
        SeasonalProfiles
        arrays_bytes arrays_part check_forest estimator_bytes estimator_part faults_in_words
        fill_unknown_columns in_words json_part known_s minimum part_of step_means
    """,
    "torchloom_core.wire.capability": """
        Action Count Finite KnobName KnobValue KnobValues MetricName Name Operation RoleName
        ShortText Target Text
    """,
    "torchloom_core.live.capability": """
        ActionKind Cordons Notice Output Plan Run Stage Stages Subject
        cannot_agree fenced_stages landed_text listed missed_text nearest workers_text
    """,
    "torchloom_core.lab.capability": """
        FleetAnswer FleetModel
    """,
    "torchloom_core.cli.capability": """
        HERE WAIT_S
        AsJson Connection Duration RequestError Role Wait
        console propose
    """,
    "torchloom_core.testing": """
        CapabilityContract CollectorContract EffectorContract ImporterContract LearnerContract
        LinkSample PolicyContract PredictorContract StorageContract
        hellos view_of
    """,
    "torchloom_core.lab.trace": """
        ACTIONS EVENTS JOBS PLACEMENT TOPOLOGY
        ActionTaken BandwidthParameters Bundle BundleWriter Component Event Exposure Feed
        Findings Follows Job Manifest Parameters Placement RecordedIncarnation
        TraceError Watched
        from_trajectory recorded_incarnation recorded_inputs synthesize synthesize_bandwidth
        validate views
    """,
    "torchloom_core.lab.trace.importers": """
        import_backblaze import_csv import_infinitehbd
        import_kernel_log import_kubernetes import_slurm
    """,
    "torchloom_threadlet": """
        Loom
        attach
    """,
    "torchloom_threadlet.adapters": """
        Adapter Diverged
    """,
    "torchloom_threadlet.capability": """
        OperationError Sidecar SidecarPart Trainer TrainerPart
    """,
    "torchloom_threadlet.landscape": """
        Landscape
    """,
    "torchloom_threadlet.preview": """
        Preview
    """,
    "torchloom_threadlet.testing": """
        AdapterContract Rank TrainerCapabilityContract
    """,
    "torchloom_threadlet.torchft": """
        attach
    """,
    "torchloom_threadlet.torchrun": """
        attach
    """,
}


@pytest.mark.parametrize("name", FACES)
def test_a_public_module_exports_exactly_these_names(name):
    assert importlib.import_module(name).__all__ == FACES[name].split()


@pytest.mark.parametrize("name", FACES)
def test_a_name_without_an_underscore_is_exported_or_only_used(name):
    """A module that only re-exports exports all its public names; others may import more."""
    face = importlib.import_module(name)
    gathers = name.startswith("torchloom_core")
    public = {
        attribute
        for attribute, value in vars(face).items()
        if not attribute.startswith("_")
        and not isinstance(value, types.ModuleType)
        and (gathers or getattr(value, "__module__", "") == name)
    }
    assert public <= set(face.__all__)


@pytest.mark.parametrize("name", FACES)
def test_the_names_are_sorted_constants_then_classes_then_functions(name):
    names = importlib.import_module(name).__all__
    assert names == sorted(names, key=lambda each: (not each.isupper(), each[0].islower(), each))


def test_docs_and_experiments_import_traces_from_the_public_module():
    behind = re.compile(r"torchloom_core\.trace\.(?!importers import)[\w.]+ import")
    readers = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("experiments/**/*.py")]
    texts = {path: path.read_text(encoding="utf-8") for path in readers}
    assert [path.name for path, text in texts.items() if behind.search(text)] == []


@pytest.mark.parametrize("page", ["README", "docs/policy", "docs/predictor", "docs/threadlet"])
def test_a_page_for_authors_imports_public_modules_only(page):
    text = (ROOT / f"{page}.md").read_text(encoding="utf-8")
    used = set(re.findall(r"from (torchloom_(?:core|threadlet)[\w.]*) import", text))
    assert used <= set(FACES)
