"""No order of deaths and messages loses a committed step, and the model finds planted bugs."""

import msgspec
import pytest

from tests.rendezvous.program_model import Model, Violation
from torchloom_core.live.rendezvous import rendezvous
from torchloom_core.live.rendezvous.holdings import Holdings
from torchloom_core.live.rendezvous.rendezvous import Rendezvous
from torchloom_core.live.rendezvous.workers import Workers
from torchloom_core.wire.generations import Fault, Stopped

SIZES = [
    {"workers": 3},
    {"workers": 5},
    {"workers": 7, "replicas": 3, "kills": 5},
    {"workers": 4, "replicas": 3, "copies": 1},
    {"workers": 5, "replicas": 5, "standbys": 0, "kills": 2, "copies": 2},
]


def walks(seeds, **options):
    return [walk(seed, **options) for seed in seeds]


def walk(seed, **options):
    model = Model(seed, **options)
    for _ in range(4000):
        if not model.act():
            break
    else:
        model.fail("it does not end")
    left = [worker for worker in model.workers.values() if worker.is_alive]
    if model.rendezvous.assignment is not None and left:
        model.fail(f"it stands still: {left}")
    return model.halted


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_no_committed_step_is_lost_and_every_run_ends(size):
    ends = walks(range(150), **size)
    assert ends.count("all steps are done") > 50


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_no_committed_step_is_lost_in_many_runs(size):
    walks(range(1000, 11_000), **size)


class BeginsBeforeAllHaveStopped(Rendezvous):
    def _not_stopped(self):
        found = super()._not_stopped()
        return found if len(found) > 1 else []


class TakesReportsOfOldGenerations(Rendezvous):
    def receive(self, worker, message, now_s):
        if isinstance(message, Stopped | Fault):
            message = msgspec.structs.replace(message, generation=self.last_generation)
        return super().receive(worker, message, now_s)


class ForgetsTheLastStep(Rendezvous):
    def receive(self, worker, message, now_s):
        sends = super().receive(worker, message, now_s)
        self._final = None
        return sends


def forgets_what_is_kept(workers, present):
    members = ((name, workers[name].stopped) for name in workers.members(present))
    return {name: report for name, report in members if report is not None}


def test_the_model_finds_a_rendezvous_that_forgets_the_layers_of_who_is_left_out(monkeypatch):
    monkeypatch.setattr(Workers, "reports", forgets_what_is_kept)
    with pytest.raises(Violation, match="although each layer is held"):
        walks(range(1500), workers=7, replicas=3, kills=5)


def takes_the_least_step(reports):
    least = min(report.committed for report in reports.values())
    whole = {name: frozenset(report.layers) for name, report in reports.items()}
    return Holdings(least, whole, dict.fromkeys(whole, frozenset()))


def ignores_kept_gradients(reports):
    latest = max(report.committed for report in reports.values())
    whole = {
        name: frozenset(report.layers if report.committed == latest else ())
        for name, report in reports.items()
    }
    return Holdings(latest, whole, dict.fromkeys(whole, frozenset()))


def no_memory(has):
    return has, {}


def test_the_model_finds_a_rendezvous_that_forgets_the_experts_in_memory(monkeypatch):
    monkeypatch.setattr(rendezvous, "with_mirrors", no_memory)
    with pytest.raises(Violation, match="is left out"):
        walks(range(1500), workers=4, replicas=3, copies=1)


@pytest.mark.parametrize("function", [takes_the_least_step, ignores_kept_gradients])
def test_the_model_finds_a_wrong_view_of_what_workers_hold(monkeypatch, function):
    monkeypatch.setattr(rendezvous, "holdings", function)
    with pytest.raises(Violation):
        walks(range(1500), workers=5)


@pytest.mark.parametrize(
    "kind", [BeginsBeforeAllHaveStopped, TakesReportsOfOldGenerations, ForgetsTheLastStep]
)
def test_the_model_finds_a_rendezvous_that_begins_too_early(kind):
    with pytest.raises(Violation):
        walks(range(1500), workers=5, kind=kind)
