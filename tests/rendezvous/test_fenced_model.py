"""No order of deaths and messages has workers of a pipeline make a step with two values."""

import pytest

from tests.rendezvous.fenced_model import FencedModel
from tests.rendezvous.program_model import Violation

SIZES = [{"workers": 3}, {"workers": 5, "fails": True}, {"workers": 7, "replicas": 3, "kills": 5}]


def walks(seeds, *args, **options):
    return [walk(seed, *args, **options) for seed in seeds]


def walk(seed, kind=FencedModel, **options):
    model = kind(seed, **options)
    for _ in range(6000):
        if not model.act():
            break
    else:
        model.fail("it does not end")
    if model.rendezvous.assignment is not None and any(model.is_running(n) for n in model.parts):
        model.fail("it stands still")
    return model


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_change_is_made_at_one_step_by_all_or_by_none(size):
    models = walks(range(150), **size)
    ends = [model.halted for model in models]
    assert ends.count("all steps are done") > 50
    assert sum(len(model.made) for model in models) > 100


class ForgetsWhatItRollsForward(FencedModel):
    """Drops the agreement of a step that it commits after its generation is over."""

    def quorum(self, worker):
        return None if worker.phase == "stopped" else super().quorum(worker)


class MakesChangesOnceCounted(FencedModel):
    """Makes a change before the step is committed."""

    def share(self, worker):
        super().share(worker)
        now = self.part(worker).now
        if now.fence.agreed:
            self.end_step(worker, self.quorum(worker))


class NamesTheNextGeneration(FencedModel):
    """Counts a step that it rolls forward as one of the generation that follows."""

    def quorum(self, worker):
        return super().quorum(worker) + (worker.phase == "stopped")


class KeepsItsOwnKnobs(FencedModel):
    """Takes over layers alone."""

    def inherit(self, worker):
        own = self.part(worker).now
        super().inherit(worker)
        now = self.part(worker).now
        now.value, now.before = own.value, own.before


class ComputesOnAfterAFailure(FencedModel):
    """Goes on with a step that was computed with a value that is undone now."""

    def compute(self, worker):
        used = self.part(worker).used
        super().compute(worker)
        if self.part(worker).attempt:
            self.part(worker).used = used


@pytest.mark.parametrize(
    "kind",
    [
        ForgetsWhatItRollsForward,
        MakesChangesOnceCounted,
        NamesTheNextGeneration,
        KeepsItsOwnKnobs,
        ComputesOnAfterAFailure,
    ],
)
def test_the_model_finds_a_worker_that(kind):
    with pytest.raises(Violation):
        walks(range(1500), kind, workers=5, fails=True)
