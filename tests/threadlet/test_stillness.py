"""A sidecar's view of a trainer that finishes no step: whether it works, and its stack."""

import pytest

from tests.threadlet.test_hangs import value_of
from torchloom_core.wire.messages import Note
from torchloom_threadlet.stacks import innermost, stack_of
from torchloom_threadlet.trainer.phases import Compilations, Phases

STACKS = """Thread 0x00007f01 (most recent call first):
  File "/env/queue.py", line 180 in get

Current thread 0x00007f02 (most recent call first):
  File "/run/train.py", line 12 in save
  File "/run/train.py", line 40 in <module>
"""


@pytest.mark.long
@pytest.mark.integration
async def test_a_trainer_that_holds_the_gil_is_still_and_not_interrupted(weaver, start_trainer):
    trainer = start_trainer("--hang-at", "5", "--hang-by", "hold")
    await weaver.admit()
    still = await weaver.event(Note, kind="still")
    assert still.fields["at"].startswith("trainer.py:")
    assert still.fields["at"].endswith(" in hold_the_gil")
    batch = await weaver.beat(lambda batch: value_of(batch, "trainer_stack_still_s") > 0)
    assert value_of(batch, "trainer_cpu_still_s") > 1.0
    await trainer.until(lambda: trainer.journal("held"))
    received = len(weaver.telemetry)
    await trainer.goes_on()
    works = await weaver.until(lambda: weaver.telemetry[received + 20 :])
    assert value_of(works[-1], "trainer_cpu_still_s") == 0.0


@pytest.mark.long
@pytest.mark.integration
async def test_a_trainer_whose_child_computes_is_not_still(weaver, start_trainer):
    trainer = start_trainer("--hang-at", "5", "--hang-by", "child")
    await weaver.admit()
    await weaver.beat(lambda batch: batch.progress_age_s > 8.0)
    stalled = [batch for batch in weaver.telemetry if batch.progress_age_s > 4.0]
    assert not any(value_of(batch, "trainer_stack_still_s") for batch in stalled)
    assert trainer.process.poll() is None


@pytest.mark.long
@pytest.mark.integration
async def test_a_named_phase_is_reported_while_the_gil_is_held_and_so_is_its_overrun(
    weaver, start_trainer
):
    start_trainer("--hang-at", "5", "--hang-by", "phase", TORCHLOOM_HANG_AFTER_S="0.5")
    await weaver.admit()
    await weaver.beat(lambda batch: 0 < value_of(batch, "trainer_phase_left_s") < 3)
    overrun = await weaver.event(Note, kind="phase_overrun")
    assert overrun.fields == {"phase": "evaluate", "at_most_s": 3.0}
    hang = await weaver.event(Note, kind="hang")  # not before its bound
    assert hang.fields["progress_age_s"] > 3.0


def test_a_stack_is_that_of_the_thread_that_trains():
    assert innermost(stack_of(STACKS, 0x7F02)) == "train.py:12 in save"
    assert innermost(stack_of(STACKS, 0x7F01)) == "queue.py:180 in get"
    assert innermost(stack_of(STACKS, 0)) == "train.py:12 in save"  # the main thread is last
    assert (
        innermost(stack_of(STACKS, 3)) == innermost(stack_of("no stacks: it is stopped", 0)) == ""
    )


def test_of_nested_phases_the_one_with_the_latest_end_counts():
    phases = Phases()
    outer = phases.enter("evaluate", 600.0)
    inner = phases.enter("save", 5.0)
    assert phases.named() == outer
    phases.leave(outer)  # in any order, as threads do
    assert phases.named() == inner
    phases.leave(inner)
    assert phases.named() is None
    for bound in (0.0, -1.0, float("nan"), "5"):
        with pytest.raises(ValueError, match="need at_most_s > 0"):
            phases.enter("save", bound)


@pytest.mark.slow
def test_a_torch_compilation_is_a_phase_also_after_a_reset():
    import torch

    phases, reported, seen = Phases(), [], []
    compilations = Compilations(phases, lambda: reported.append(phases.named().name))

    def backend(graph, inputs):
        seen.append(phases.named().name)
        return graph

    compiled = torch.compile(lambda x: x + 1, backend=backend)
    for shape in (2, 3):
        for _ in range(2):
            compilations.look()
        assert compiled(torch.ones(shape, shape)).sum() == 2 * shape**2
        assert phases.named() is None
        torch._dynamo.reset()
    assert reported == seen == ["compile", "compile"]
