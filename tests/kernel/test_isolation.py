"""A bad policy is quarantined with one line, and does not affect the others."""

import itertools
import math
import os
import signal
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.kernel.runs import (
    Calls,
    Run,
    active,
    hello,
    make_kernel,
    of,
    only,
    proposal,
    telemetry,
)
from torchloom_core.capabilities.alert import Alert
from torchloom_core.capabilities.drain import DrainGroup
from torchloom_core.capabilities.migrate import Migrate
from torchloom_core.live.kernel.plugins.host import MAX_PROPOSALS
from torchloom_core.live.weaver.deadline_guard import DeadlineGuard
from torchloom_core.plugin import FleetView, Need, NeedForecast
from torchloom_core.wire.actions import ChangeKnob
from torchloom_core.wire.codec import encode
from torchloom_core.wire.decisions import Output, PolicyFailed, Proposal, Proposed
from torchloom_core.wire.events import Forecast

CONFIG = "[arbiter]\nmin_groups = 0\nmax_in_motion_share = 1.0\ncooldown_s = 2"
NEEDS = (Need("heat", 3.0), NeedForecast("oracle"))


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class DearerProposal(Proposal, frozen=True, kw_only=True):
    @property
    def net_gpu_s(self) -> float:
        raise RuntimeError("no price")


def raising(error: BaseException) -> Any:
    def policy(view: FleetView) -> Any:
        raise error

    return policy


def late(view: FleetView) -> Any:
    """Fail after some good proposals, which must not count."""
    yield proposal(Migrate(group="a"), gain=1e9)
    raise ValueError("late")


def spoil(view: FleetView) -> Any:
    """Overwrite everything in reach, then propose nothing."""
    for name in vars(view):
        if not name.startswith("_"):
            setattr(view, name, None)


def empty_the_dicts(view: FleetView) -> Any:
    view.knob_specs.clear()
    forecast = view.forecast("oracle")
    if forecast:
        forecast.hazard.clear()
    view.knob("lr").clear()


def scribble(view: FleetView) -> Any:
    view.latest("heat")[:] = 0.0


def scribble_on_window(view: FleetView) -> Any:
    view.window("heat", 3.0)[:] = 0.0


def scribble_on_step(view: FleetView) -> Any:
    view.step[:] = 0


def one(**changes: Any) -> Any:
    fields = {"action": Alert(worker="a-0", text="x"), "reason": "r", "gain_gpu_s": 1.0}
    return lambda view: [Proposal(**{**fields, **changes})]


BAD = {
    "raises": raising(ValueError("no")),
    "exits": raising(SystemExit(3)),
    "closes": raising(GeneratorExit()),
    "unprintable_error": raising(UnprintableError()),
    "late": late,
    "number": lambda view: 3,
    "numbers": lambda view: [1, 2],
    "text": lambda view: "drain",
    "unprintable": lambda view: [Unprintable()],
    "class": lambda view: [Proposal],
    "endless": lambda view: itertools.repeat(proposal(Alert(worker="a-0", text="x"))),
    "nan": one(gain_gpu_s=math.nan),
    "negative": one(cost_gpu_s=-1.0),
    "infinite": one(gain_gpu_s=math.inf),
    "too_sure": one(confidence=1.5),
    "text_price": one(gain_gpu_s="much"),
    "none_action": one(action=None),
    "odd_group": one(action=Migrate(group=["a"])),
    "odd_knob": one(action=ChangeKnob(knob=None, value=object())),
    "odd_cause": one(cause=3),
    "half_a_character": one(reason="\ud800"),
    "half_an_alert": one(action=Alert(worker="a-0", text="\ud800")),
    "half_an_error": raising(ValueError("\ud800")),
    "essay": one(reason="r" * 10_001),
    "nan_knob": one(action=ChangeKnob(knob="lr", value=math.nan)),
    "huge_knob": one(action=ChangeKnob(knob="lr", value=2**64)),
    "odd_knob_name": one(action=ChangeKnob(knob="a knob", value=1)),
    "long_group": one(action=Migrate(group="g" * 257)),
    "scribble": scribble,
    "scribble_on_window": scribble_on_window,
    "scribble_on_step": scribble_on_step,
    "undeclared": lambda view: view.latest("undeclared"),
    "coroutine": lambda view: (x async for x in ()),  # type: ignore[attr-defined]
}
HARMLESS = {"none": lambda view: None, "spoil": spoil, "empty_the_dicts": empty_the_dicts}


def good(view: FleetView) -> Any:
    """Propose by all data of the view."""
    heat = np.nansum(view.window("heat", 3.0), axis=1)
    for row, group in enumerate(view.group):
        if heat[row] > 5.0 and view.state[row] == "training":
            yield proposal(Migrate(group=group), gain=float(heat[row]))
    hazard = float(np.nansum(view.hazard("oracle")))
    if "lr" in view.knob_specs and view.knob("lr"):
        lr = round(hazard / (1 + view.now_s % 7), 6)
        yield proposal(ChangeKnob(knob="lr", value=min(1.0, lr)), gain=1.0)


def cautious(view: FleetView) -> Any:
    if view.now_ns % 2 == 0 and int(view.step.sum()) > 3:
        yield proposal(DrainGroup(group="b"), gain=3.0)


def drive(bad: list[tuple[int, str]], heats: list[list[float]]) -> list[Output]:
    """Return the outputs of a run with these bad policies at these positions."""
    policies = [active("good", Calls(good, NEEDS)), active("cautious", Calls(cautious, NEEDS))]
    for place, name in bad:
        policies.insert(place, active(name, Calls({**BAD, **HARMLESS}[name], NEEDS)))
    run = Run(make_kernel(policies, CONFIG))
    for worker in ("a-0", "b-0", "c-0"):
        run.feed(hello(worker))
    for worker in ("s-0", "t-0"):
        run.feed(hello(worker, state="standby"))
    run.feed(Forecast(id="f", predictor="oracle", horizon_s=60.0, hazard={"a-0": 0.5, "b-0": 0.2}))
    for step, heat in enumerate(heats):
        for worker, value in zip(("a-0", "b-0", "c-0"), heat, strict=True):
            run.feed(telemetry(worker, {"heat": value}, step=step))
        run.tick()
        for flight in list(run.kernel.commands.flights.values()):
            run.ack(flight.command)
    return run.outputs


heats = st.lists(st.lists(st.floats(0, 10), min_size=3, max_size=3), min_size=1, max_size=5)
bads = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(sorted({**BAD, **HARMLESS}))),
    unique_by=lambda pair: pair[1],
    min_size=1,
    max_size=5,
)


@settings(max_examples=examples(120))
@given(bad=bads, heats=heats)
def test_bad_policies_do_not_affect_good_ones(bad, heats):
    alone, together = drive([], heats), drive(bad, heats)
    failed = of(PolicyFailed, together)
    rest = [encode(output) for output in together if not isinstance(output, PolicyFailed)]
    assert rest == [encode(output) for output in alone]
    assert sorted(f.policy for f in failed) == sorted(name for _, name in bad if name in BAD)
    for failure in failed:
        assert "\n" not in failure.detail


@pytest.mark.parametrize("name", sorted({**BAD, **HARMLESS}))
def test_each_bad_policy_alone_does_not_affect_later_ones(name):
    heats = [[1.0, 6.0, 9.0], [6.0, 1.0, 1.0]]
    rest = [o for o in drive([(0, name)], heats) if not isinstance(o, PolicyFailed)]
    assert rest == drive([], heats)


@pytest.mark.parametrize("name", sorted(BAD))
def test_each_failure_has_file_and_line(name):
    failure = only(PolicyFailed, drive([(0, name)], [[1.0, 1.0, 1.0]]))
    assert failure.rule in {"raised", "garbage"}
    assert ".py:" in failure.detail
    encode(failure)


def failing(policy: Any) -> PolicyFailed:
    run = Run(make_kernel([active("bad", Calls(policy))]))
    return only(PolicyFailed, run.tick())


def test_the_reported_line_is_the_policys_own():
    """The innermost frame is numpy's."""
    detail = failing(lambda view: np.linalg.inv(np.zeros((2, 2)))).detail
    assert detail.startswith("LinAlgError: Singular matrix (")
    assert "linalg" not in detail.split("(")[1]


def test_an_invalid_result_is_reported_with_rule_and_value():
    assert "need a finite gain_gpu_s >= 0, was nan" in failing(one(gain_gpu_s=math.nan)).detail
    detail = failing(one(action=Migrate(group=3))).detail
    assert "Expected `str`, got `int` - at `$.action.group`" in detail
    many = failing(lambda view: [proposal(Alert(worker="a", text=""))] * (MAX_PROPOSALS + 1))
    assert f"need at most {MAX_PROPOSALS} proposals a tick" in many.detail


def test_ctrl_c_is_no_failure_of_the_interrupted_policy():
    run = Run(make_kernel([active("bad", Calls(raising(KeyboardInterrupt())))]))
    with pytest.raises(KeyboardInterrupt):
        run.tick()


def test_numpy_numbers_are_accepted_and_recorded_as_plain_ones():
    def policy(view: FleetView) -> Any:
        action = ChangeKnob(knob="lr", value=np.float32(0.5))
        yield Proposal(action=action, reason="r", gain_gpu_s=np.float64(3), cost_gpu_s=np.int64(1))

    run = Run(make_kernel([active("numpy", Calls(policy))]))
    proposed = only(Proposed, run.tick())
    assert b'"gain_gpu_s":3.0,"cost_gpu_s":1.0' in encode(proposed)


def test_a_proposal_modified_later_is_judged_as_proposed():
    causes = ["n1"]
    mine = DearerProposal(action=Alert(worker="a-0", text=""), reason="r", cause=causes)

    def policy(view: FleetView) -> Any:
        yield mine
        causes.append("n2")

    run = Run(make_kernel([active("late", Calls(policy))]))
    proposed = only(Proposed, run.tick())
    causes.clear()
    assert proposed.proposal.cause == ("n1",)
    assert type(proposed.proposal) is Proposal


# --- time ---


def hang(view: FleetView) -> Any:
    while True:
        pass


def hang_stubbornly(view: FleetView) -> Any:
    try:
        hang(view)
    except BaseException:  # noqa: BLE001 - that is what it does
        hang(view)


def hang_in_a_proposal(view: FleetView) -> Any:
    class Slow:
        def __repr__(self) -> str:
            hang(view)
            return ""

    return [Slow()]


def sleep(view: FleetView) -> Any:
    threading.Event().wait()


@pytest.mark.parametrize("policy", [hang, hang_stubbornly, hang_in_a_proposal, sleep])
def test_a_policy_that_hangs_is_interrupted_and_the_others_are_called(policy):
    scripted = Calls(lambda view: [proposal(Alert(worker="a-0", text="hot"))])
    policies = [active("bad", Calls(policy)), active("good", scripted)]
    run = Run(make_kernel(policies, guard=DeadlineGuard(0.05)))
    outputs = run.tick()
    failure = only(PolicyFailed, outputs)
    assert (failure.policy, failure.rule) == ("bad", "overran")
    assert failure.detail.startswith("took more than 0.05 s (")
    assert ".py:" in failure.detail
    encode(failure)
    assert only(Proposed, outputs).policy == "good"
    assert of(PolicyFailed, run.tick()) == []


def test_the_guard_restores_timer_and_handler():
    signals: list[int] = []
    handler = signal.signal(signal.SIGALRM, lambda signum, frame: signals.append(signum))
    timer = signal.setitimer(signal.ITIMER_REAL, 3600.0)
    try:
        with DeadlineGuard(0.5).limit("p", 1):
            pass
        assert 3000.0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 3600.0
        os.kill(os.getpid(), signal.SIGALRM)
        assert signals == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def test_the_guard_interrupts_no_code_but_the_policys():
    """An alarm between the policy's end and the timer's must not hit the kernel."""
    guard = DeadlineGuard(3600.0)
    frames: list[Any] = []
    with guard.limit("p", 1):
        limit = guard.limit("q", 2)
        limit.__enter__()
        frames.append(limit.gen.gi_frame)  # type: ignore[attr-defined]
        limit.__exit__(None, None, None)
    guard._interrupt(signal.SIGALRM, frames[0])


def test_outside_the_main_thread_nothing_is_interrupted():
    seen: list[list[Output]] = []

    def work() -> None:
        run = Run(make_kernel([active("p", Calls(lambda view: None))], guard=DeadlineGuard(0.01)))
        seen.append(run.tick())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [[]]
