"""The same inputs give the same outputs bit for bit, and no input crashes the kernel."""

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.kernel.inputs import acks, scripts
from tests.kernel.runs import START_NS, Calls, active, make_kernel, proposal
from torchloom_core.capabilities.checkpoint import SaveCheckpoint
from torchloom_core.capabilities.drain import DrainGroup
from torchloom_core.capabilities.migrate import Migrate
from torchloom_core.live.dispatch.policy_guard import OVERRAN, RecordedGuard
from torchloom_core.live.kernel.kernel import Kernel
from torchloom_core.plugin import FleetView, Need, NeedForecast
from torchloom_core.wire.actions import ChangeKnob
from torchloom_core.wire.codec import encode
from torchloom_core.wire.commands import FINAL_STATUSES, Ack
from torchloom_core.wire.events import Recovered, Tick

NEEDS = [Need("heat", 3.0), Need("loss"), NeedForecast("oracle")]


class Oracle:
    name = "oracle"
    needs = (Need("heat", 5.0),)
    horizon_s = 60.0
    every_s = 2.0


def eager(view: FleetView) -> Any:
    """Propose something that depends on all data of the view."""
    digest = hashlib.sha256()
    for array in (view.step, view.window("heat", 3.0), view.latest("loss"), view.age_s("heat")):
        digest.update(np.ascontiguousarray(array).tobytes())
    for array in view.links(range(len(view))):
        digest.update(np.ascontiguousarray(array).tobytes())
    digest.update(repr((view.state, view.knob("lr"), view.faults, view.hazard("oracle"))).encode())
    draw = digest.digest()[0]
    for group in sorted(set(view.group)):
        yield proposal(Migrate(group=group), gain=float(draw))
        yield proposal(DrainGroup(group=group), gain=20.0, confidence=0.5)
    yield proposal(ChangeKnob(knob="lr", value=draw / 255), gain=1.0)
    yield proposal(SaveCheckpoint(), gain=1.0)


def fails_on_heat(view: FleetView) -> Any:
    if np.any(view.latest("heat") > 0):
        raise ValueError("too hot")


CONFIG = """
[arbiter]
holdout = 0.3
min_groups = 0
max_in_motion_share = 1.0
cooldown_s = 3.0
[arbiter.actions.drain]
approval = true
"""


def fresh() -> Kernel:
    policies = [
        active("eager", Calls(eager, NEEDS)),
        active("watcher", Calls(eager, NEEDS), "shadow"),
        active("hot", Calls(fails_on_heat, NEEDS)),
        active("slow", Calls(lambda view: None)),
    ]
    guard = RecordedGuard([(7, "slow", "took more than 0.5 s (slow.py:3)")])
    return make_kernel(policies, CONFIG, {"oracle": Oracle()}, guard)


def drive(script: list[tuple[Any, int]]) -> list[bytes]:
    kernel, now_ns, outputs = fresh(), START_NS, []
    for message, delay_ns in script:
        now_ns += delay_ns
        outputs += [encode(output) for output in kernel.step(message, now_ns)]
        outputs.append(encode(kernel.control()))
    return outputs


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(script=scripts)
def test_two_kernels_with_the_same_inputs_give_the_same_outputs(script):
    assert drive(script) == drive(script)


class Answers:
    """Acks for commands in flight, drawn during the run."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def draw(self, kernel: Kernel) -> Ack:
        flights = list(kernel.commands.flights.values())
        ack = self._data.draw(acks)
        if not flights:
            return ack
        command = self._data.draw(st.sampled_from(flights)).command
        return Ack(
            command=command.id,
            run="run",
            worker=command.worker,
            incarnation=command.incarnation,
            epoch=ack.epoch,
            status=ack.status,
        )


@settings(max_examples=examples(100))
@given(script=scripts, data=st.data())
def test_no_input_ends_a_command_twice_or_a_plan_twice(script, data):
    kernel, now_ns, answers = fresh(), START_NS, Answers(data)
    ended: list[str] = []
    outcomes: list[str] = []
    granted: list[str] = []
    for message, delay_ns in script:
        now_ns += delay_ns
        if isinstance(message, Recovered):
            continue  # only possible as the first input; tested elsewhere
        for fed in (message, answers.draw(kernel)):
            for output in kernel.step(fed, now_ns):
                body = output.__struct_config__.tag
                if body == "command_status" and output.status in FINAL_STATUSES:
                    ended.append(output.command)
                elif body == "outcome":
                    outcomes.append(output.verdict)
                elif body == "verdict" and output.granted:
                    granted.append(output.proposal)
    event(f"{min(len(outcomes), 3)} outcomes or more")
    assert len(set(ended)) == len(ended)
    assert len(set(outcomes)) == len(outcomes)
    assert {*outcomes, *kernel.run.plans.table} == set(granted)


def test_a_recorded_overrun_is_replayed_with_the_same_text():
    outputs = drive([(Tick(), 0)] * 8)
    assert sum(b'"rule":"' + OVERRAN.encode() in line for line in outputs) == 1
    assert any(b"took more than 0.5 s (slow.py:3)" in line for line in outputs)
