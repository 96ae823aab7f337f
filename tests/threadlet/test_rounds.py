"""How often LocalSGD and DiLoCo synchronise, changed during their rounds."""

import itertools
import threading
import time
from concurrent.futures import Future

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchft")

from torchft.local_sgd import DiLoCo, LocalSGD  # noqa: E402

from tests.threadlet.training.groups import train, with_torchft  # noqa: E402
from torchloom_core.floor.errors import KnobError  # noqa: E402
from torchloom_core.wire.commands import Command  # noqa: E402
from torchloom_core.wire.operations import FencedChange, SetKnobs  # noqa: E402
from torchloom_threadlet.torchft import attach  # noqa: E402


class LoneManager:
    """A Manager alone in its quorum; each sync records the round's length."""

    _use_async_quorum = False

    def __init__(self):
        self.step = 0
        self.commits = True
        self.in_quorum = lambda: None

    def register_state_dict_fn(self, key, load, save):
        pass

    def allow_state_dict_read(self):
        pass

    disallow_state_dict_read = allow_state_dict_read

    def start_quorum(self):
        self.in_quorum()

    def allreduce(self, tensor, should_quantize=False):
        work = Future()
        work.set_result(None)
        work.wait = work.result
        return work

    def should_commit(self):
        self.step += self.commits
        return self.commits

    def current_step(self):
        return self.step


class Rig:
    """One LocalSGD or DiLoCo, its knobs, and how many inner steps each round took."""

    def __init__(self, parts, every, delay=0):
        self.manager = LoneManager()
        fragments = [torch.nn.Linear(2, 2) for _ in range(max(1, parts))]
        self.model = torch.nn.Sequential(*fragments)
        self.inner = torch.optim.SGD(self.model.parameters(), lr=0.1)
        if parts:
            outer = [torch.optim.SGD(f.parameters(), lr=0.7) for f in fragments]
            self.local = DiLoCo(
                self.manager, fragments, self.inner, outer, every, fragment_sync_delay=delay
            )
        else:
            self.local = LocalSGD(self.manager, self.model, self.inner, every)
        self.loom = attach()
        self.loom.local_sgd(self.local)
        self.actuators = self.loom._worker.actuators
        self.rounds = []

    def set(self, **values):
        self.actuators.check(values)
        for name, value in values.items():
            self.actuators.set_knob(name, value)

    def steps(self, count):
        for _ in range(count):
            self.inner.zero_grad()
            self.model(torch.ones(1, 2)).sum().backward()
            before = self.local._local_step
            self.inner.step()
            if self.local._local_step == 0:
                self.rounds.append(before + 1)

    def __enter__(self):
        self.local.__enter__()
        return self

    def __exit__(self, *of):
        self.local.__exit__(*of)


@pytest.mark.parametrize(("parts", "round"), [(0, 8), (1, 8), (2, 4)])
def test_a_round_keeps_its_length_and_the_next_one_has_the_new_value(parts, round):
    with Rig(parts, 8) as rig:
        rig.steps(round - 1)
        rig.set(sync_every=2)
        assert rig.actuators.values["sync_every"] == 2
        rig.steps(1)
        short = 2 // max(1, parts)
        rig.steps(2 * short)
        rig.set(sync_every=16)
        rig.steps(16)
    assert rig.rounds[:3] == [round, short, short]
    assert set(rig.rounds[3:]) == {16 // max(1, parts)}


def test_a_value_set_during_a_sync_is_for_the_next_round():
    with Rig(2, 8, delay=2) as rig:
        rig.manager.in_quorum = lambda: rig.set(sync_every=2, fragment_sync_delay=0)
        rig.steps(2)  # into the quorum, with an allreduce in flight
        assert rig.local._fragments[0]._allreduce_work
        rig.manager.in_quorum = lambda: None
        rig.steps(5)
    assert rig.rounds == [4, 1, 1, 1]
    assert [f._fragment_sync_delay for f in rig.local._fragments] == [0, 0]
    assert [(f._sync_every, f._fragment_sync_offset) for f in rig.local._fragments] == [
        (2, 1),
        (2, 2),
    ]


def test_a_failed_sync_still_ends_its_round():
    with Rig(2, 8, delay=1) as rig:
        rig.manager.commits = False
        rig.steps(3)
        rig.set(sync_every=4)
        rig.steps(1)
        rig.manager.commits = True
        rig.steps(4)
    assert rig.rounds == [4, 2, 2]


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"sync_every": 7}, "knob sync_every: need a multiple of the 2 fragments, was 7"),
        (
            {"sync_every": 4},
            "knob sync_every: need sync_every // fragments > fragment_sync_delay, was 4 // 2 with "
            "a delay of 2",
        ),
        (
            {"fragment_sync_delay": 4},
            "knob fragment_sync_delay: need sync_every // fragments > fragment_sync_delay, was "
            "8 // 2 with a delay of 4",
        ),
        ({"sync_every": 0}, "knob sync_every: need at least 2, was 0"),
        ({"sync_every": 4.5}, "knob sync_every: need a whole number, was 4.5"),
        ({"fragment_sync_delay": -1}, "knob fragment_sync_delay: need at least 0, was -1"),
        ({"sync_every": "often"}, "knob sync_every: need a whole number, was 'often'"),
    ],
)
def test_an_impossible_schedule_is_refused_with_one_line(values, line):
    rig = Rig(2, 8, delay=2)
    with pytest.raises(KnobError) as refused:
        rig.actuators.check(values)
    assert str(refused.value) == line
    rig.actuators.check({"sync_every": 4, "fragment_sync_delay": 1})


def test_local_sgd_has_no_delay_and_takes_any_number_from_1():
    rig = Rig(0, 8)
    assert list(rig.actuators.values) == ["sync_every"]
    rig.actuators.check({"sync_every": 1})
    with pytest.raises(KnobError, match="need at least 1, was 0"):
        rig.actuators.check({"sync_every": 0})


CHANGES = [
    {"sync_every": 16, "fragment_sync_delay": 3},
    {"sync_every": 4, "fragment_sync_delay": 1},
    {"sync_every": 12, "fragment_sync_delay": 5},
    {"sync_every": 2, "fragment_sync_delay": 0},
]


@with_torchft
def test_real_groups_change_their_rounds_at_one_sync():
    looms, barrier = {}, threading.Barrier(2)

    def offer(number):
        values = CHANGES[number - 1]
        for group, loom in looms.items():
            worker = loom._worker
            worker.deliver(
                Command(
                    id=f"c{number}-{group}",
                    run="",
                    worker=worker.identity.worker,
                    incarnation=worker.identity.incarnation,
                    epoch=1,
                    issued_ns=time.time_ns(),
                    deadline_ns=time.time_ns() + 60_000_000_000,
                    do=FencedChange(number=number, do=SetKnobs(values=values)),
                )
            )

    def body(group, manager, pg):
        torch.manual_seed(0)
        fragments = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]
        model = torch.nn.Sequential(*fragments)
        inner = torch.optim.SGD(model.parameters(), lr=0.01)
        outers = [torch.optim.SGD(f.parameters(), lr=0.7) for f in fragments]
        loom = looms[group] = attach(group=f"g{group}")
        loom.manage(manager, inner)
        diloco = DiLoCo(manager, fragments, inner, outers, 8, fragment_sync_delay=1)
        loom.local_sgd(diloco)
        barrier.wait()
        schedules, pending = [], iter(range(1, len(CHANGES) + 1))
        offered = 0
        with diloco:
            for step in itertools.count():
                inner.zero_grad()
                model(torch.full((1, 2), group + 1.0)).sum().backward()
                before = manager.current_step()
                inner.step()
                loom.step()
                if manager.current_step() > before:
                    schedules.append((diloco._sync_every, diloco._fragment_sync_delay))
                if manager.current_step() == 24:
                    break
                # During a round, so that its allreduce may be in flight.
                if group == 0 and step % 11 == 10 and offered < len(CHANGES):
                    offered = next(pending)
                    offer(offered)
        weights = [f.original_parameters for f in diloco._fragments]
        return schedules, weights, loom._worker.changes._step

    (one, weights, landed), (other, others, landed_too) = train(2, body)
    assert one == other
    assert [key for key, _ in itertools.groupby(one)] == [(4, 1), (8, 3), (2, 1), (6, 5), (1, 0)]
    assert landed == landed_too
    for mine, theirs in zip(weights, others, strict=True):
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
