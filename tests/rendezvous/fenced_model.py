"""The model of a pipeline's workers, with changes to a knob that are offered meanwhile.

Each worker has the fence of a real one. It knows the value of its own knob alone; the model
compares with which value each worker has made each step that it committed.
"""

from dataclasses import dataclass, field

from tests.rendezvous.program_model import Model, Worker
from torchloom_threadlet.fence.agreement import Change, Fence, is_split, read_minima


@dataclass
class Knob:
    """What a worker takes over: its fence, its knob's value, and the one before."""

    fence: Fence
    value: int = 0
    before: int = 0


@dataclass
class Fenced:
    """A worker's part that the first model does not have."""

    now: Knob
    standing: Knob | None = None
    offers: list = field(default_factory=list)
    is_behind: bool = True
    attempt: int = 0
    used: int = 0
    reduced_in: int = 0


class FencedModel(Model):
    """A run in which ``offers`` changes are offered, and may fail where ``fails``."""

    def __init__(self, seed, offers=3, fails=False, **more):
        self.offers_left, self.numbers, self.fails = offers, 0, fails
        self.parts, self.ballots, self.used, self.made = {}, {}, {}, {}
        super().__init__(seed, **more)

    def start(self, name):
        super().start(name)
        self.parts[self.starts] = Fenced(Knob(Fence(ballots=1000 * self.starts)))

    def part(self, worker) -> Fenced:
        return self.parts[worker.incarnation]

    # --- what may happen next ---------------------------------------------------------------

    def steps_of(self, worker: Worker):
        part, found = self.part(worker), []
        if self.offers_left and self.random.random() < 0.02:
            found.append("offer")
        if part.offers:
            found.append("offered")
        if worker.phase == "inherits" and not self.is_done(worker):
            source = self.workers[worker.begin.knobs_of]
            is_there = source.is_alive and source.generation == worker.generation
            return found + (["inherit"] if is_there else self.errors(worker))
        if worker.phase == "shares":
            members = worker.begin.assignment.workers
            done = all((*self.key(worker), name) in self.ballots for name in members)
            return found + (["share"] if done else []) + self.errors(worker)
        return found + super().steps_of(worker)

    def key(self, worker):
        return worker.generation, worker.committed + 1, self.part(worker).attempt

    def offer(self, _worker):
        self.offers_left -= 1
        self.numbers += 1
        for worker in self.workers.values():
            if worker.is_alive:
                self.part(worker).offers.append(Change(number=self.numbers))

    def offered(self, worker):
        now = self.part(worker).now
        now.fence = now.fence.offer(self.part(worker).offers.pop(0))

    # --- a step -------------------------------------------------------------------------------

    def compute(self, worker):
        super().compute(worker)
        self.part(worker).used = self.part(worker).now.value

    def reduce(self, worker):
        now = self.part(worker).now
        now.fence, ballot = now.fence.vote()
        self.ballots[(*self.key(worker), worker.name)] = ballot.minima()
        worker.phase = "shares"

    def share(self, worker):
        part, members = self.part(worker), worker.begin.assignment.workers
        cast = [self.ballots[(*self.key(worker), name)] for name in members]
        least, largest = read_minima(tuple(map(min, zip(*cast, strict=True))))
        if is_split(least, largest):
            self.fail(f"{worker.name} and others have other lineages: {least} {largest}")
        now = part.now
        now.fence = now.fence.count(least, largest)
        if now.fence.must_undo:
            now.fence, now.value = now.fence.undo(), now.before
        if least.undone != largest.undone:
            part.attempt += 1
            worker.phase = "computes"
            return
        part.reduced_in = worker.generation
        super().reduce(worker)

    def apply(self, worker):
        part, step = self.part(worker), worker.committed + 1
        if self.used.setdefault(step, part.used) != part.used:
            self.fail(f"{worker.name} makes step {step} with {part.used}, not {self.used[step]}")
        super().apply(worker)
        self.end_step(worker, self.quorum(worker))

    def quorum(self, worker):
        """Return the number in the lineage of a step: of the generation that has reduced it."""
        return self.part(worker).reduced_in

    def end_step(self, worker, quorum):
        part = self.part(worker)
        part.attempt = 0
        part.now.fence, change = part.now.fence.end_step(quorum)
        if change is not None:
            self.make(worker, change.number)

    def make(self, worker, number):
        now = self.part(worker).now
        alive = {n: s for n, s in self.made.get(number, {}).items() if self.is_running(n)}
        if set(alive.values()) - {worker.committed}:
            self.fail(f"{worker.name} makes change {number} at {worker.committed}: {alive}")
        self.made.setdefault(number, {})[worker.incarnation] = worker.committed
        now.before = now.value
        if self.fails and self.random.random() < 0.1:
            now.fence = now.fence.fail(number)
        else:
            now.value = number

    def is_running(self, incarnation):
        return any(w.is_alive and w.incarnation == incarnation for w in self.workers.values())

    # --- a change of generation ---------------------------------------------------------------

    def enter(self, worker, begin):
        part = self.part(worker)
        rolls = worker.committed == begin.committed - 1 == worker.reduced - 1
        if not rolls or not worker.generation:
            self.end_step(worker, None)
        if not rolls and worker.committed != begin.committed:
            part.is_behind = True
        before = worker.knobs_as_of
        super().enter(worker, begin)
        if not worker.generation:
            part.is_behind = True
            return
        now = part.now
        part.standing = Knob(now.fence, now.value, now.before)
        if part.is_behind and begin.knobs_of not in ("", worker.name):
            worker.phase, worker.knobs_as_of = "inherits", before
        else:
            part.is_behind = False

    def inherit(self, worker):
        part, peer = self.part(worker), self.part(self.workers[worker.begin.knobs_of]).standing
        part.now = Knob(part.now.fence.inherit(peer.fence), peer.value, peer.before)
        part.is_behind, worker.knobs_as_of = False, worker.generation
        worker.phase = "copies" if worker.to_copy else "computes"
