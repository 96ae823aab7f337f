"""Workers of a pipeline as a few states, and a rendezvous between them, in random order.

Messages arrive in the order they were sent, at any time, old ones perhaps once more. A worker may
end at any moment, between any two events of a step, of a copy or of a change of generation.
"""

import random
from collections import deque
from dataclasses import dataclass, field

from torchloom_core.assignments.experts import mirrors
from torchloom_core.live.rendezvous.rendezvous import Rendezvous
from torchloom_core.live.rendezvous.settings import Settings
from torchloom_core.wire.assignment import Copy
from torchloom_core.wire.generations import (
    Begin,
    ExpertLayer,
    ExpertState,
    Fault,
    Halt,
    Join,
    Leave,
    Mirror,
    Regroup,
    Stop,
    Stopped,
)
from torchloom_core.wire.planned_changes import Change

LAYERS, EXPERTS = 6, 4
FIRST = 100  # of the experts' numbers among a worker's parts
EVERY = 2  # steps between two copies of an expert in a peer's memory


class Violation(AssertionError):
    """What must never happen, with the events that led to it."""


@dataclass
class Worker:
    name: str
    incarnation: int
    committed: int = -1
    reduced: int = -1
    generation: int = 0
    begin: Begin | None = None
    layers: dict = field(
        default_factory=lambda: dict.fromkeys([*range(LAYERS), *range(FIRST, FIRST + EXPERTS)], -1)
    )
    memory: dict = field(default_factory=dict)
    to_mirror: list = field(default_factory=list)
    to_copy: list = field(default_factory=list)
    phase: str = "waits"
    asked: int = 0
    inbox: deque = field(default_factory=deque)
    outbox: deque = field(default_factory=deque)
    sent: list = field(default_factory=list)
    is_alive: bool = True
    retires: bool = False
    knobs_as_of: int = 0
    is_spare: bool = False  # without a part, and with the layers of the generation before

    @property
    def needs(self):
        if not self.begin:
            return ()
        experts = self.begin.assignment.experts_of(self.name)
        return (*self.begin.assignment.layers_of(self.name), *(FIRST + e for e in experts))

    def has(self, step=None):
        """Return the parts that it has whole as of a step: its last one, or the one it reduced."""
        there = {n for n, at in self.layers.items() if at == self.committed}
        own = there.intersection(self.needs)
        if self.is_spare or self.reduced <= self.committed:
            return there
        spare = {n for n in there if n < FIRST}
        return own | spare if step in (None, self.committed) else own


class Model:
    """A run of ``workers``; each call of :meth:`act` is one event that was possible."""

    def __init__(
        self, seed, workers=4, standbys=1, replicas=2, steps=6, kind=Rendezvous, kills=3, copies=0
    ):
        self.random = random.Random(seed)
        self.kind, self.steps, self.kills_left = kind, steps, kills
        self.now_s, self.replicas = 0.0, replicas
        self.expert_layers = (ExpertLayer(EXPERTS, copies=copies),) if copies else ()
        settings = Settings(workers=workers, standbys=standbys)
        self.saved = None
        self.rendezvous = kind(settings, 0.0, self.save)
        self.workers = {}
        self.ended = []
        self.cast = {}
        self.computed = {}
        self.events = []
        self.starts = 0
        self.checked = set()
        self.halted = ""
        self.best = -1
        for number in range(workers):
            self.start(f"w{number}")

    def save(self, saved):
        self.saved = saved or self.saved

    def start(self, name):
        self.starts += 1
        worker = self.workers[name] = Worker(name, self.starts)
        worker.outbox.append(
            Join(
                worker=name,
                incarnation=self.starts,
                store="s:1",
                layers=LAYERS,
                replicas=self.replicas,
                layer_bytes=(1,) * LAYERS,
                expert_layers=self.expert_layers,
            )
        )

    def fail(self, text):
        raise Violation("\n".join([*self.events[-60:], text]))

    # --- what may happen next ---------------------------------------------------------------

    def act(self):
        """Do one of the possible events; return whether there was any."""
        possible = []
        for worker in self.workers.values():
            if worker.outbox:
                possible += [("heard", worker)] * 2
            if worker.is_alive and worker.sent and self.random.random() < 0.02:
                possible.append(("repeat", worker))
            if worker.is_alive:
                possible += [(what, worker) for what in self.steps_of(worker)]
                if worker.inbox:
                    possible += [("told", worker)] * 2
        if self.kills_left and self.rendezvous.assignment is not None:
            alive = [worker for worker in self.workers.values() if worker.is_alive]
            possible += [("kill", worker) for worker in alive if self.random.random() < 0.05]
            gone = [w for w in self.workers.values() if not w.is_alive and not w.outbox]
            possible += [("replace", worker) for worker in gone if self.random.random() < 0.2]
            if self.random.random() < 0.05:
                possible.append(("change", self.random.choice([*self.workers.values()])))
            if self.random.random() < 0.02:
                possible += [("retire", worker) for worker in alive if not worker.retires]
        if not possible:
            return False
        what, worker = self.random.choice(possible)
        self.events.append(f"{what} {worker.name} c{worker.committed} g{worker.generation}")
        getattr(self, what)(worker)
        return True

    def steps_of(self, worker):
        g, k = worker.generation, worker.committed + 1
        members = worker.begin.assignment.workers if worker.begin else ()
        if self.is_done(worker):
            return ["finish"]
        if worker.phase == "copies":
            return ["copy"] if self.can_copy(worker) else self.errors(worker)
        if worker.phase == "mirrors":
            source = self.workers[worker.to_mirror[0][1]]
            sent = source.generation == g and source.committed >= worker.committed
            return (["mirror"] if sent else []) + self.errors(worker)
        if worker.phase == "computes":
            return ["compute", *self.errors(worker)]
        if worker.phase == "computed":
            peers = {p for n in worker.needs for p in self.holders(worker, n)}
            done = all((g, k, peer) in self.computed for peer in peers)
            return (["reduce"] if done else []) + self.errors(worker)
        if worker.phase == "voted":
            done = all((g, k, name) in self.cast for name in members)
            return (["commit"] if done else []) + self.errors(worker)
        return []

    def is_done(self, worker):
        """Return whether its script makes no other step; it forms no group for one, either."""
        return worker.committed + 1 >= self.steps and worker.phase in (
            "inherits",
            "copies",
            "mirrors",
            "computes",
        )

    def errors(self, worker):
        """Return what a worker notices by itself: a peer's connection has ended."""
        members = worker.begin.assignment.workers
        broken = any(
            not self.workers[name].is_alive or self.workers[name].generation != worker.generation
            for name in members
        )
        return ["error"] if broken else []

    def holders(self, worker, part):
        assignment = worker.begin.assignment
        return assignment.experts[part - FIRST] if part >= FIRST else assignment.holders(part)

    def can_copy(self, worker):
        copy = worker.to_copy[0]
        source = self.workers[copy.source]
        return (
            source.is_alive
            and source.generation == worker.generation
            and source.phase not in ("stopped", "faulted")
            and copy not in source.to_copy
        )

    # --- a worker's events --------------------------------------------------------------------

    def copy(self, worker):
        copy = worker.to_copy.pop(0)
        source = self.workers[copy.source]
        self.restore(source, copy.layer)
        if source.layers.get(copy.layer) != worker.committed:
            self.fail(f"{source.name} sends layer {copy.layer} of {source.layers}")
        worker.layers[copy.layer] = worker.committed
        if not worker.to_copy:
            worker.phase = "computes"

    def restore(self, worker, part):
        """Take an expert from memory, if it is not held."""
        if worker.layers.get(part) != worker.committed and part in worker.memory:
            worker.layers[part] = worker.committed

    def mirror(self, worker):
        part, _ = worker.to_mirror.pop(0)
        worker.memory[part] = worker.committed
        worker.phase = "mirrors" if worker.to_mirror else "computes"

    def compute(self, worker):
        for layer in worker.needs:
            if worker.layers.get(layer) != worker.committed:
                self.fail(f"{worker.name} computes with layer {layer} of {worker.layers}")
        self.computed[worker.generation, worker.committed + 1, worker.name] = True
        worker.phase = "computed"

    def reduce(self, worker):
        worker.reduced = worker.committed + 1
        self.cast[worker.generation, worker.reduced, worker.name] = worker.asked
        worker.phase = "voted"

    def commit(self, worker):
        g, k = worker.generation, worker.committed + 1
        self.apply(worker)
        asked = max(self.cast[g, k, name] for name in worker.begin.assignment.workers)
        experts, names = worker.begin.assignment.experts, worker.begin.assignment.workers
        due = [e for e in range(len(experts)) if (k + e) % EVERY == 0]
        peers = mirrors(experts, names)
        worker.to_mirror = [(FIRST + e, experts[e][0]) for e in due if peers[e] == worker.name]
        worker.phase = "mirrors" if worker.to_mirror else "computes"
        if asked > g:
            self.stop(worker)

    def apply(self, worker):
        worker.committed += 1
        for layer in worker.needs:
            if worker.layers.get(layer) == worker.committed - 1:
                worker.layers[layer] = worker.committed
        self.best = max(self.best, worker.committed)

    def stop(self, worker):
        whole, own = worker.has(), worker.has(worker.reduced)
        worker.outbox.append(
            Stopped(
                generation=worker.generation,
                committed=worker.committed,
                reduced=worker.reduced,
                layers=tuple(n for n in own if n < FIRST),
                spare=tuple(n for n in whole - own if n < FIRST),
                knobs_as_of=worker.knobs_as_of,
                experts=tuple(n - FIRST for n in whole if n >= FIRST),
                expert_state=ExpertState(
                    mirrors=tuple(Mirror(n - FIRST, step) for n, step in worker.memory.items())
                ),
            )
        )
        worker.phase, worker.to_copy = "stopped", []

    def error(self, worker):
        worker.outbox.append(Fault(generation=worker.generation, detail="a peer is gone"))
        worker.phase = "faulted"

    def finish(self, worker):
        worker.outbox.append(Leave(finished=True, committed=worker.committed))
        worker.phase = "finished"

    def kill(self, worker):
        self.kills_left -= 1
        worker.is_alive = False
        worker.outbox.append(None)

    def retire(self, worker):
        self.kills_left -= 1
        worker.retires = True
        worker.outbox.append(Leave(committed=worker.committed, at_once=False))

    def repeat(self, worker):
        worker.outbox.append(self.random.choice(worker.sent))

    def replace(self, worker):
        self.start(worker.name)

    def change(self, worker):
        """A client decides that a worker has no part, or that all may have one, perhaps late."""
        generation = self.rendezvous.last_generation - (self.random.random() < 0.2)
        leaving = (worker.name,) if self.random.random() < 0.7 else ()
        before = self.rendezvous.assignment
        asked = Change(id="c", generation=generation, without=leaving)
        self.rendezvous.planned.decided_by_client(self.now_s)
        sends = self.rendezvous.change(asked, self.now_s)
        if sends and generation != before.generation:
            self.fail(f"a change of generation {generation} is made in {before.generation}")
        self.send(sends)

    # --- messages --------------------------------------------------------------------------------

    def heard(self, worker):
        message = worker.outbox.popleft()
        if isinstance(message, Stopped | Fault):
            worker.sent.append(message)
        if message is None:
            self.send(self.rendezvous.end(worker.name, self.now_s))
        elif isinstance(message, Join) and self.rendezvous.refusal(message):
            self.fail(f"refused: {self.rendezvous.refusal(message)}")
        else:
            self.send(self.rendezvous.receive(worker.name, message, self.now_s))

    def send(self, sends):
        for name, message in sends:
            worker = self.workers.get(name)
            if isinstance(message, Begin):
                self.check_left_out(message)
            if isinstance(message, Halt):
                self.halted = message.why
                if message.status == "lost":
                    self.check_lost()
            if worker is not None and worker.is_alive:
                worker.inbox.append(message)

    def there(self, names):
        """Return the workers of these that are alive and can be at the latest step of them."""
        alive = [w for w in self.workers.values() if w.is_alive and w.name in names]
        alive = [w for w in alive if w.generation]
        step = max((w.committed for w in alive), default=-1)
        return [w for w in alive if w.committed == step or w.committed == step - 1 == w.reduced - 1]

    def check_lost(self):
        """A run may end only if no assignment can follow, with those that were left out, too."""
        there = self.there(self.saved.assignment.workers if self.saved else ())
        step = max((worker.committed for worker in there), default=-1)
        if there:
            spare = [w for w in self.workers.values() if w.is_alive and w.is_spare]
            there += [worker for worker in spare if worker.committed == step]
        held = {n for worker in there for n in worker.has(step) | worker.memory.keys()}
        experts = range(FIRST, FIRST + EXPERTS * bool(self.expert_layers))
        if set(range(LAYERS)) <= held and (not experts or held & set(experts)):
            self.fail(f"it ends ({self.halted}), although each layer is held")

    def check_left_out(self, begin):
        """An expert is left out only if no worker of the last generation has it, or a copy."""
        number = begin.assignment.generation
        if number in self.checked or number == 1:
            return
        self.checked.add(number)
        stopped = [w for w in self.workers.values() if w.phase == "stopped"]
        there = self.there([w.name for w in stopped if w.generation == number - 1])
        held = {part for worker in there for part in worker.has()}
        for worker in there:
            for part in worker.has() | worker.memory.keys():
                if part >= FIRST and self.expert_layers:
                    if not begin.assignment.experts[part - FIRST]:
                        self.fail(f"expert {part - FIRST} is left out: {worker.name} has it")
                    newest = max(w.memory.get(part, -1) for w in there)
                    if part not in held and worker.committed - newest > 2 * EVERY:
                        self.fail(f"expert {part - FIRST}: its newest memory is of {newest}")

    def told(self, worker):
        message = worker.inbox.popleft()
        if message is None or isinstance(message, Halt):
            worker.is_alive = False
            worker.inbox.clear()
        elif isinstance(message, Stop):
            is_over = worker.phase in ("stopped", "finished") or self.is_done(worker)
            if message.generation == worker.generation and not is_over:
                self.stop(worker)
        elif isinstance(message, Regroup):
            worker.asked = max(worker.asked, message.next)
        elif isinstance(message, Begin):
            self.enter(worker, message)

    def enter(self, worker, begin):
        if begin.assignment.generation <= worker.generation:
            self.fail(f"{worker.name} is sent generation {begin.assignment.generation} again")
        is_in = worker.name in begin.assignment.workers
        if worker.generation and is_in and begin.committed < worker.committed:
            self.fail(f"{worker.name} has committed {worker.committed}: {begin.committed} begins")
        if worker.committed == begin.committed - 1 == worker.reduced - 1 and worker.generation:
            self.apply(worker)
        elif worker.committed != begin.committed:
            worker.committed, worker.layers, worker.memory = begin.committed, {}, {}
        worker.reduced = min(worker.reduced, worker.committed)
        reported = worker.has() if worker.generation or worker.is_spare else set()
        worker.begin, worker.is_spare = begin, False
        if worker.retires:
            worker.outbox.append(Leave(committed=worker.committed))
            worker.is_alive = False
        if not is_in:
            worker.generation, worker.phase, worker.reduced = 0, "waits", -1
            worker.is_spare = not begin.assignment.experts
            worker.layers = {n: s for n, s in worker.layers.items() if n in reported}
            if not worker.is_spare:
                worker.committed, worker.layers, worker.memory = -1, {}, {}
            return
        worker.generation, worker.asked = begin.assignment.generation, 0
        worker.knobs_as_of = worker.generation
        if begin.committed < 0:  # it makes them itself
            worker.layers |= dict.fromkeys(worker.needs, -1)
        shifted = [Copy(FIRST + c.layer, c.source, c.target) for c in begin.expert_copies]
        copies = [*begin.copies, *shifted]
        worker.to_copy = [copy for copy in copies if copy.target == worker.name]
        for part in worker.needs:
            if part >= FIRST and part not in [copy.layer for copy in worker.to_copy]:
                self.restore(worker, part)
                worker.memory.pop(part, None)
        worker.phase = "copies" if worker.to_copy else "computes"
