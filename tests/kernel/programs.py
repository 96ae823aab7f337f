"""What a rendezvous reports of a program that is split over workers."""

from torchloom_core.wire.assignment import Assignment, Stage
from torchloom_core.wire.generations import Outlook
from torchloom_core.wire.planned_changes import Answered, Offer
from torchloom_core.wire.programs import ProgramSeen

OFFER = Offer(why="w4 is stage 1", step_s=0.1, present_step_s=0.2, stall_s=0.5, copied_bytes=1e6)


def outlook(generation=1, workers=("w0", "w1", "w2", "w3"), why="first", **fields):
    """Return an outlook of two replicas of as many stages each, with four layers."""
    half = len(workers) // 2
    cut = [4 * n // half for n in range(half + 1)]
    routes = tuple(
        tuple(Stage(name, cut[n], cut[n + 1]) for n, name in enumerate(names))
        for names in (workers[:half], workers[half:])
    )
    present = Assignment(generation=generation, layers=4, routes=routes, why=why)
    own = {"phase": "running", "standbys": ("w4",), "committed": 7, "nodes": {"w1": "n1"}}
    return Outlook(assignment=present, **(own | fields))


def program_seen(role="trainer", **fields):
    return ProgramSeen(role=role, outlook=outlook(**fields))


def answered(verdict, state="done", why=""):
    return Answered(id=verdict, state=state, why=why)
