"""Every kind of action has all its parts, in the kernel and on the fleet model."""

from pathlib import Path

import msgspec
import pytest

from tests.kernel.programs import program_seen
from tests.kernel.runs import can_be_probed, hello, in_quorum, node_agent
from torchloom_core.capabilities.admit import AdmitGroup
from torchloom_core.capabilities.assign_role import AssignRole
from torchloom_core.capabilities.cordon import CordonNode
from torchloom_core.capabilities.drain import DrainGroup
from torchloom_core.capabilities.evict import EvictGroup
from torchloom_core.capabilities.preview import PreviewChange
from torchloom_core.capabilities.probe import ProbeLinks
from torchloom_core.capabilities.rewind import RewindRun
from torchloom_core.capabilities.suspend import SuspendRun
from torchloom_core.capabilities.uncordon import UncordonNode
from torchloom_core.cli.found_command import verb_of
from torchloom_core.floor.errors import PluginError
from torchloom_core.live.kernel.actions import kinds
from torchloom_core.live.kernel.actions.kinds import (
    check_installed,
    kind_named,
    summary_of,
)
from torchloom_core.testing import CapabilityContract
from torchloom_core.wire import capabilities
from torchloom_core.wire.actions import ChangeKnob, ChangeKnobs, name_of
from torchloom_core.wire.capabilities import action_type, find_part, installed
from torchloom_core.wire.messages import KnobSpec
from torchloom_core.wire.operations import (
    Operation,
    Prepare,
    Rewind,
    SetKnobs,
    Suspend,
    Withdraw,
    WriteLog,
)
from torchloom_core.wire.requests import Propose, Request

ROOT = Path(__file__).parents[3]

EXAMPLES = {
    name_of(action): action
    for action in (
        AdmitGroup(group="s"),
        AssignRole(group="a", to="rollout"),
        DrainGroup(group="b"),
        EvictGroup(group="a", then="replace"),
        ChangeKnob(knob="lr", value=0.2),
        ChangeKnobs(values={"mode": "bf16"}),
        RewindRun(skip=3),
        ProbeLinks(pairs=(("x-0", "y-0"),)),
        PreviewChange(values={"lr": 0.2}),
        UncordonNode(node="node-c"),
    )
}
"""An action of each kind that :func:`example` cannot make."""

ACTIONS = {"suspend": [SuspendRun(depth=of) for of in ("frozen", "parked", "stored")]}
"""The actions of a kind that sends other operations for each."""

ARGUMENTS = {
    "evict": ("a", "--then", "replace"),
    "probe": ("x-0", "y-0"),
    "rewind": ("--skip", "3"),
    "suspend": ("--depth", "frozen"),
    **dict.fromkeys(("landscape", "preview")),
}
"""The words that request the example, unless they are its fields; None: not by one request."""

FENCED = {"knobs", "rewind", "suspend"}


def example(name):
    """Return an action that is possible in the run of :func:`inputs`."""
    if name in EXAMPLES:
        return EXAMPLES[name]
    places = {"group": "a", "worker": "a-0", "node": "node-a"}
    fields = msgspec.structs.fields(action_type(name))
    needed = (field.name for field in fields if field.required)
    return action_type(name)(**{field: places.get(field, "a text") for field in needed})


def arguments(name):
    """Return the arguments of the command that requests the example; None if there is none."""
    if name in ARGUMENTS or find_part(name, "command") is None:
        return ARGUMENTS.get(name)
    fields = msgspec.structs.fields(type(example(name)))
    return tuple(getattr(example(name), field.name) for field in fields if field.required)


def inputs(name):
    """Return what makes the example possible: workers, a cordoned node, a quorum.

    Three groups that train, standbys, a paused worker, and two to probe; or two workers that agree
    ahead of each step.
    """
    if name in FENCED:
        mode = KnobSpec(name="mode", kind="choice", choices=("bf16", "fp32"), fence="run")
        can = ("fenced_change", "rewind")
        return [hello(worker, knobs=(mode,), actuators=can) for worker in ("a-0", "b-0")]
    if name == "assign_role":
        return [*(hello(f"{group}-0") for group in "ab"), node_agent("node-a")]
    return [
        *(in_quorum(f"{group}-0", 7) for group in "abc"),
        hello("s-0", state="standby"),
        hello("p-0", state="paused", actuators=("drain", "thaw", "load")),
        can_be_probed("x-0", state="joining"),
        can_be_probed("y-0", state="joining"),
        hello("v-0", state="standby", actuators=("survey", "rehearse")),
        Request(id="r0", want=Propose(action=CordonNode(node="node-c"))),
        program_seen(),
    ]


for _name in installed():
    globals()[f"Test_{_name}"] = type(
        f"Test_{_name}",
        (CapabilityContract,),
        {
            "actions": ACTIONS.get(_name, (example(_name),)),
            "arguments": arguments(_name),
            "inputs": lambda self: inputs(self.name()),
        },
    )
globals()["Test_pause"].test_it_is_carried_out = None  # its outcome waits for telemetry
globals()["Test_regroup"].test_it_is_carried_out = None  # and its own for a rendezvous


def test_a_capability_that_cannot_be_loaded_is_named_before_a_run_depends_on_it(monkeypatch):
    check_installed()
    found = {**installed(), "teleport": "no_such_package"}
    monkeypatch.setattr(capabilities, "installed", lambda: found)
    monkeypatch.setattr(kinds, "installed", lambda: found)
    with pytest.raises(PluginError, match=r"^capability teleport: no_such_package\.kind: "):
        check_installed()


def test_every_operation_belongs_to_a_kind_except_those_of_the_weaver_itself():
    declared = {operation for name in installed() for operation in kind_named(name).operations}
    fenced = {Rewind, SetKnobs, Suspend}  # within a fenced change
    others = set(Operation.__subclasses__()) - declared - fenced
    assert others == {Prepare, WriteLog, Withdraw}


def test_an_action_of_another_version_is_summarized_by_kind_and_subject():
    assert summary_of({"kind": "teleport", "group": "a"}) == "teleport group a"
    assert summary_of({"kind": "alert", "worker": "a-0"}) == "alert a-0"
    assert summary_of({"kind": "cordon", "node": "n1", "lasts_s": "long"}) == "cordon node n1"
    assert summary_of({"kind": ["knob"]}) == "['knob']"
    assert summary_of({}) == ""


@pytest.mark.parametrize("name", installed())
def test_a_capability_is_in_the_docs(name):
    pages = {
        page: (ROOT / "docs" / f"{page}.md").read_text() for page in ("actions", "reference-cli")
    }
    by_command = f"## torchloom {verb_of(name)}\n" in pages["reference-cli"]
    assert by_command or f"`{name}`" in pages["actions"]


def test_the_kernel_is_small():
    lines = [
        path.read_text(encoding="utf-8")
        for path in (ROOT / "torchloom_core/live/kernel").rglob("*.py")
    ]
    assert sum(text.count("\n") for text in lines) <= 3000
