"""A change tried beside a control: the judgement, and the restored state."""

import copy
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.threadlet.rehearsing import LR, Recorded, Script
from tests.threadlet.standbys import refusal, worker_with
from torchloom_core.floor.errors import KnobError
from torchloom_core.wire.operations import Rehearse, Survey
from torchloom_core.wire.preview import Curve, Judgement, Setup
from torchloom_threadlet.preview.judgement import Pair, judge, predict

SEEDS = range(2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_rate_that_is_far_too_high_is_worse(seed):
    results = Recorded(Script(seed).preview(), values={"lr": 20 * LR}, seed=seed)
    assert results.judged.result == "worse"
    assert results.judged.low is None or results.judged.low > 0
    assert results.setup.before == {"lr": LR}
    assert results.shown["verdict"].startswith("worse: ")
    assert results.shown["warning"].startswith("valid for 50 steps only")


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_rate_raised_from_far_too_low_is_better(seed):
    script = Script(seed, lr=LR / 20)
    results = Recorded(script.preview(), values={"lr": LR}, seed=seed)
    assert results.judged.result == "better"
    assert results.judged.high < 0
    assert results.judged.for_change == 5
    assert results.setup.before == {"lr": LR / 20}
    assert results.shown["verdict"].startswith("better: ")
    assert "at step 100, extrapolated from both curves" in results.shown["forecast"]


@pytest.mark.slow
@pytest.mark.parametrize("values", [{}, {"lr": LR}, {"lr": LR, "momentum": 0.9}])
@pytest.mark.parametrize("seed", [0, 7])
def test_without_a_change_both_arms_are_the_same_to_the_bit(values, seed):
    results = Recorded(Script(seed).preview(), values=values, steps=20, seed=seed)
    for repeat in range(5):
        control = results.curve(repeat, "control")
        assert len(control) == 20
        assert control == results.curve(repeat, "change")
    assert results.judged.alike
    assert (results.judged.result, results.judged.difference) == ("same", 0.0)
    assert len({tuple(results.curve(repeat, "control")) for repeat in range(5)}) == 5


def test_each_control_runs_before_its_change():
    results = Recorded(Script().preview(), values={"lr": 0.2}, steps=4, repeats=3)
    arms = list(dict.fromkeys((piece.repeat, piece.arm) for piece in results.of(Curve)))
    assert arms == [(repeat, arm) for repeat in range(3) for arm in ("control", "change")]
    assert [piece.pairs for piece in results.of(Judgement)] == [1, 2, 3]
    assert isinstance(results.pieces[0], Setup)
    assert results.progress[-1] == (4 * 6 + 4, 4 * 6 + 4)
    assert results.end.why == ""
    assert results.outcome == f"28 steps in {results.end.seconds:.1f} s"


def test_an_arm_equals_the_scripts_own_training():
    script = Script()
    results = Recorded(script.preview(), values={"lr": 0.3}, steps=6, repeats=2, seed=11)
    for repeat in range(2):
        for arm, lr in (("control", LR), ("change", 0.3)):
            script.load()
            script.optimizer.param_groups[0]["lr"] = lr
            torch.manual_seed(11 + repeat)
            assert results.curve(repeat, arm) == [script.step().item() for _ in range(6)]


def test_the_control_has_the_runs_desired_values_and_not_the_checkpoints():
    script = Script()
    results = Recorded(
        script.preview(), values={"lr": 0.3}, now={"lr": 0.2, "momentum": 0.5}, steps=4
    )
    assert results.setup.before == {"lr": 0.2}
    assert results.shown["change"] == "lr 0.2 -> 0.3"
    for repeat in range(5):
        for arm, lr in (("control", 0.2), ("change", 0.3)):
            script.load()
            script.optimizer.param_groups[0].update(lr=lr, momentum=0.5)
            torch.manual_seed(repeat)
            assert results.curve(repeat, arm) == [script.step().item() for _ in range(4)]


def test_a_change_whose_loss_is_no_number_is_worse_and_stops_its_arm():
    script = Script()

    def step():
        loss = script.step()
        return loss * math.nan if script.optimizer.param_groups[0]["lr"] > 1.0 else loss

    results = Recorded(script.preview(step), values={"lr": 2.0}, steps=20)
    assert results.curve(0, "change") == [None]
    judged = results.judged
    assert (judged.result, judged.diverged, judged.difference) == ("worse", 5, None)
    assert results.end.points == 5 * (20 + 1) + 4
    assert judged.ahead.change is None
    assert judged.ahead.control is not None


@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_control_whose_loss_is_no_number_is_one_line(after):
    script = Script()

    def step():
        loss = script.step()
        return loss if script.steps % 20 <= after else math.nan

    with pytest.raises(ValueError, match=r"number in the control, was nan at step \d+"):
        Recorded(script.preview(step), values={"lr": 0.2}, steps=20)


def test_a_step_that_is_not_reproducible_is_one_line():
    script = Script()
    batches = iter(range(1000))

    def step():
        torch.manual_seed(next(batches))
        return script.step()

    with pytest.raises(
        ValueError, match="need a step that is reproducible from one state"
    ) as refused:
        Recorded(script.preview(step), values={"lr": 0.2})
    assert script.steps == 4
    assert "\n" not in str(refused.value)


def test_data_that_is_not_drawn_begins_where_begin_sets_it():
    script, order = Script(), torch.randperm(512)
    place, begun = [0], []

    def begin(number):
        begun.append(number)
        place[0] = 100 * number

    def step():
        place[0] += 1
        rows = order[place[0] % 512 : place[0] % 512 + 1]
        script.optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(
            script.model(script.inputs[rows]), script.targets[rows]
        )
        loss.backward()
        script.optimizer.step()
        return loss

    with pytest.raises(ValueError, match="or pass begin="):
        Recorded(script.preview(step), steps=3)
    results = Recorded(script.preview(step, begin=begin), steps=3, seed=4)
    assert begun == [4, 4, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8]
    assert results.judged.alike


@pytest.mark.parametrize("fails_at", [None, 1, 3, 5, 9, 14])
def test_all_state_is_restored_to_the_bit(fails_at):
    script, used = Script(), {"width": 3}
    for _ in range(3):
        script.step()  # a standby with a state of its own, and gradients
    script.steps = 0
    script.model[2].eval()
    numpys, own = np.random.get_state(), random.getstate()

    def state():
        parts = copy.deepcopy(
            [script.model.state_dict(), script.optimizer.state_dict(), dict(used)]
        )
        drawn = [torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()]
        gradients = [weight.grad.clone() for weight in script.model.parameters()]
        return parts, drawn, gradients

    def step():
        random.random()
        np.random.random()
        if script.steps == fails_at:
            raise RuntimeError("no")
        return script.step()

    preview = script.preview(step)
    preview.knob("width", lambda: used["width"], lambda value: used.update(width=value), kind="int")
    before = state()
    trial = {"values": {"lr": 0.2, "width": 9}, "steps": 3, "repeats": 2}
    if fails_at is None:
        Recorded(preview, **trial)
    else:
        with pytest.raises(RuntimeError):
            Recorded(preview, **trial)
    torch.testing.assert_close(state(), before, rtol=0, atol=0)
    assert [module.training for module in script.model] == [True, True, False, True]
    assert random.getstate() == own
    assert np.random.get_state()[1].tolist() == numpys[1].tolist()


def test_a_schedule_continues_in_the_preview_and_is_restored():
    script = Script()
    scheduler = torch.optim.lr_scheduler.StepLR(script.optimizer, step_size=2, gamma=0.5)
    rates = []

    def step():
        rates.append(script.optimizer.param_groups[0]["lr"])
        loss = script.step()
        scheduler.step()
        return loss

    before = copy.deepcopy(scheduler.state_dict())
    preview = script.preview(step, load=lambda: None, scheduler=scheduler)
    Recorded(preview, values={"lr": 0.4}, steps=3, repeats=1)
    assert rates[4:] == [0.1, 0.1, 0.05, 0.4, 0.4, 0.2]
    assert scheduler.state_dict() == before


def test_a_knob_of_the_script_is_set_in_the_change_s_arm_alone():
    script, used, seen = Script(), {"scale": 1.0}, []

    def step():
        seen.append(used["scale"])
        return script.step() * used["scale"]

    preview = script.preview(step)
    preview.knob("scale", lambda: used["scale"], lambda value: used.update(scale=value), high=4.0)
    results = Recorded(preview, values={"scale": 3.0}, steps=2, repeats=2)
    assert seen == [1.0] * 4 + [1.0, 1.0, 3.0, 3.0] * 2
    assert used == {"scale": 1.0}
    assert results.judged.result == "few"


def test_incompatible_values_are_one_line_and_change_nothing():
    script, used = Script(), {"a": 1}

    def check(values):
        if values["a"] > 2:
            raise ValueError("need a <= 2")

    preview = script.preview()
    preview.knob("a", lambda: used["a"], lambda v: used.update(a=v), kind="int", check=check)
    with pytest.raises(KnobError, match="knob a: need a <= 2"):
        Recorded(preview, values={"a": 3})
    assert (script.steps, used) == (0, {"a": 1})


@pytest.mark.parametrize("step", [0, 1, 4, 5, 13, 20])
def test_another_command_ends_the_preview_at_the_next_step(step):
    script = Script()
    results = Recorded(
        script.preview(), should_stop=lambda: script.steps >= step, values={"lr": 1.0}, steps=4
    )
    assert script.steps == step == results.end.points
    assert "it was cancelled" in results.end.why
    pairs = [piece.pairs for piece in results.of(Judgement)]
    assert pairs == list(range(1, max(0, step - 4) // 8 + 1))  # only complete pairs


def test_only_a_standby_whose_script_offers_a_preview_runs_one():
    offers = worker_with(preview=Script().preview())
    assert "rehearse" in offers.operations.offered()
    assert "survey" not in offers.operations.offered()
    assert offers.hello().tries == ("lr", "momentum", "weight_decay")
    assert refusal(offers, Rehearse(values={"lr": 0.2}), "standby") == ""
    assert refusal(offers, Rehearse(), "training") == "need a standby, the worker is training"
    assert refusal(offers, Rehearse(values={"lrr": 0.2}), "standby") == (
        "the script's Preview: no knob is called 'lrr'; did you mean lr?"
    )
    assert refusal(offers, Rehearse(values={"lr": -1.0}), "standby") == (
        "the script's Preview: knob lr: need at least 0, was -1.0"
    )
    assert refusal(offers, Survey(), "standby") == (
        "the script offers no landscape: pass landscape= to attach()"
    )
    none = worker_with()
    assert "rehearse" not in none.operations.offered()
    assert none.hello().tries == ()
    assert refusal(none, Rehearse(), "standby") == (
        "the script offers no preview: pass preview= to attach()"
    )
    assert refusal(none, Rehearse(steps=0), "training") == ""
    training = worker_with(preview=Script().preview(), standby=False)
    assert "rehearse" not in training.operations.offered()


# --- the judgement ---


def pair(control, change, steps=8):
    return Pair([control] * steps, [change] * steps)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=40))
def test_the_interval_is_that_of_the_sign_test(differences):
    judged = judge([pair(0.0, one) for one in differences], 8)
    count = len(differences)

    def probability(inwards):
        return 1.0 - 2.0 * sum(math.comb(count, i) for i in range(inwards + 1)) / 2**count

    sure = [inwards for inwards in range(count // 2) if probability(inwards) >= 0.9]
    inwards = max(sure, default=0)
    in_order = sorted(differences)
    assert judged.low == pytest.approx(in_order[inwards], abs=1e-12)
    assert judged.high == pytest.approx(in_order[count - 1 - inwards], abs=1e-12)
    assert judged.confidence == pytest.approx(probability(inwards))
    assert judged.low <= judged.difference <= judged.high


@pytest.mark.slow
def test_changes_without_effect_are_judged_as_effective_at_the_stated_rate():
    generator = torch.Generator().manual_seed(0)
    for repeats in (5, 7, 12):
        judgements = []
        for _ in range(500):
            ends = torch.randn(repeats, generator=generator).tolist()
            judgements.append(judge([pair(0.0, end) for end in ends], 8))
        wrong = sum(one.result != "same" for one in judgements) / len(judgements)
        assert wrong == pytest.approx(1.0 - judgements[0].confidence, abs=0.02)
        assert judgements[0].confidence >= 0.9


@pytest.mark.parametrize("pairs", [1, 2, 3, 4])
def test_too_few_pairs_give_no_judgement(pairs):
    judged = judge([pair(1.0, 2.0)] * pairs, 8)
    assert (judged.result, judged.confidence) == ("few", 1.0 - 2.0 ** (1 - pairs))
    assert judge([pair(1.0, 2.0)] * 5, 8).result == "worse"


@given(st.floats(0.1, 5.0), st.floats(-3.0, 3.0), st.floats(0.15, 1.9), st.integers(8, 60))
def test_an_exponential_is_extrapolated(level, rise, share, steps):
    def loss(step):
        return level + rise * math.exp(-step / (share * steps))

    forecast = predict([loss(step) for step in range(steps)], 2 * steps)
    moved = abs(loss(steps - 1) - loss(0))
    assert forecast == pytest.approx(loss(2 * steps - 1), abs=0.03 * moved + 1e-9)
