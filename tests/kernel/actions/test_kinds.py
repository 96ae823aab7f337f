"""Every kind of action has all its parts, in the kernel and on the fleet model."""

from pathlib import Path

import msgspec
import pytest

from tests.kernel.runs import Run, can_be_probed, hello, in_quorum, make_kernel, three_groups
from torchloom_core.capabilities.admit import AdmitGroup
from torchloom_core.capabilities.alert import Alert
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
from torchloom_core.capabilities.resume import ResumeRun
from torchloom_core.capabilities.rewind import RewindRun
from torchloom_core.capabilities.uncordon import UncordonNode
from torchloom_core.config.template import template_text
from torchloom_core.floor.errors import PluginError
from torchloom_core.lab.simulate.answer import answer_of
from torchloom_core.live.kernel.actions import kinds
from torchloom_core.live.kernel.actions.kinds import (
    check_installed,
    kind_named,
    kind_of,
    summary_of,
    target_of,
)
from torchloom_core.wire import capabilities
from torchloom_core.wire.actions import ChangeKnob, ChangeKnobs, name_of
from torchloom_core.wire.capabilities import action_type, installed
from torchloom_core.wire.messages import KnobSpec
from torchloom_core.wire.operations import FencedChange, Operation, Prepare, Withdraw, WriteLog

ROOT = Path(__file__).parents[3]

POSSIBLE = {
    name_of(action): action
    for action in (
        Migrate(group="a"),
        AdmitGroup(group="s"),
        DrainGroup(group="b"),
        EvictGroup(group="a", then="replace"),
        ChangeKnob(knob="lr", value=0.2),
        ChangeKnobs(values={"mode": "bf16"}),
        SaveCheckpoint(),
        PauseRun(),
        ResumeRun(),
        RewindRun(skip=3),
        CollectDump(worker="a-0"),
        ProbeLinks(pairs=(("x-0", "y-0"),)),
        MapLandscape(),
        PreviewChange(values={"lr": 0.2}),
        Alert(worker="a-0", text="look"),
        CordonNode(node="node-b"),
        UncordonNode(node="node-c"),
    )
}
"""One action of each kind that is possible in :func:`run`."""


@pytest.fixture
def run():
    """Three groups that train, standbys, a cordoned node, a paused worker, and two to probe."""
    built = three_groups(make_kernel())
    built.feed(hello("p-0", state="paused"))
    built.feed(can_be_probed("x-0", state="joining"))
    built.feed(can_be_probed("y-0", state="joining"))
    built.feed(hello("v-0", state="standby", actuators=("survey", "rehearse")))
    built.ask(CordonNode(node="node-c"))
    for group in "abc":
        built.feed(in_quorum(f"{group}-0", 7))
    return built.kernel.run


@pytest.fixture
def agreeing():
    """Two workers that agree ahead of each step."""
    built = Run(make_kernel())
    mode = KnobSpec(name="mode", kind="choice", choices=("bf16", "fp32"), fence="run")
    for worker in ("a-0", "b-0"):
        built.feed(hello(worker, knobs=(mode,), actuators=("fenced_change", "rewind")))
    return built.kernel.run


def test_a_capability_that_cannot_be_loaded_is_named_before_a_run_depends_on_it(monkeypatch):
    check_installed()
    found = {**installed(), "teleport": "no_such_package"}
    monkeypatch.setattr(capabilities, "installed", lambda: found)
    monkeypatch.setattr(kinds, "installed", lambda: found)
    with pytest.raises(PluginError, match=r"^capability teleport: no_such_package\.kind: "):
        check_installed()


def test_every_installed_capability_is_tried_here():
    assert set(POSSIBLE) == set(installed())


@pytest.mark.parametrize("name", POSSIBLE)
def test_a_capability_has_its_action_and_its_kind(name):
    assert kind_named(name).message is action_type(name) is type(POSSIBLE[name])


@pytest.mark.parametrize("name", POSSIBLE)
def test_the_fleet_model_answers_all_operations_of_a_kind_or_none(name):
    answer = answer_of(name)
    assert {*answer.of_group, *answer.of_run} in (set(), set(kind_named(name).operations))


def test_every_operation_belongs_to_a_kind_except_those_of_the_weaver_itself():
    declared = {operation for name in POSSIBLE for operation in kind_named(name).operations}
    assert declared | {Prepare, WriteLog, Withdraw} == set(Operation.__subclasses__())
    assert Prepare not in declared


@pytest.mark.parametrize("name", POSSIBLE)
def test_the_stages_of_a_kind_have_its_declared_operations(name, run, agreeing):
    kind, action = kind_named(name), POSSIBLE[name]
    run = agreeing if kind.operations == (FencedChange,) else run
    assert kind.obstacle(action, run) == ""
    sent = [type(stage.operation) for stage in kind.stages(action, run).stages]
    assert tuple(sent) == kind.operations


@pytest.mark.parametrize("name", POSSIBLE)
def test_a_kind_has_a_target_and_moves_only_that(name):
    kind, action = kind_named(name), POSSIBLE[name]
    assert kind_of(action) is kind
    assert target_of(action)
    about = {name: getattr(action, name, None) or "" for name in ("group", "worker", "node")}
    assert kind.subject(action)._asdict() == about
    assert kind.moves(action) == (frozenset({about["group"]}) if kind.moves_group else frozenset())
    assert kind.takes(action) <= kind.moves(action)
    assert not kind.moves_group or kind.high_impact  # the breaker counts what is moved
    assert kind.changes_run or not kind.high_impact


@pytest.mark.parametrize("name", POSSIBLE)
def test_a_kind_has_a_summary_in_words(name, run):
    summary = summary_of(msgspec.to_builtins(POSSIBLE[name]))
    assert summary.startswith(name)
    assert "\n" not in summary


def test_an_action_of_another_version_is_summarized_by_kind_and_subject():
    assert summary_of({"kind": "teleport", "group": "a"}) == "teleport group a"
    assert summary_of({"kind": "alert", "worker": "a-0"}) == "alert a-0"
    assert summary_of({"kind": "cordon", "node": "n1", "lasts_s": "long"}) == "cordon node n1"
    assert summary_of({"kind": ["knob"]}) == "['knob']"
    assert summary_of({}) == ""


@pytest.mark.parametrize("name", POSSIBLE)
def test_a_kind_is_in_the_config_template_and_the_docs(name):
    assert name in template_text()
    for page in ("actions.md", "arbiter.md"):
        assert f"`{name}`" in (ROOT / "docs" / page).read_text(encoding="utf-8"), page


def test_the_kernel_is_small():
    lines = [
        path.read_text(encoding="utf-8")
        for path in (ROOT / "torchloom_core/live/kernel").rglob("*.py")
    ]
    assert sum(text.count("\n") for text in lines) <= 3000
