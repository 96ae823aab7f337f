"""Ranks of a compressed process group, each in a process of its own, and requests to them."""

import contextlib
import json
from pathlib import Path
from subprocess import PIPE

from tests.preloaded import Preloaded


class Rank:
    """One rank, in a process of its own."""

    def __init__(self, *arguments):
        script = Path(__file__).with_name("compressing_rank.py")
        self.process = Preloaded([script, *map(json.dumps, arguments)], stdin=PIPE, stdout=PIPE)

    def ask(self, name, **arguments):
        self.process.stdin.write(json.dumps([name, arguments]) + "\n")
        self.process.stdin.flush()

    def answer(self):
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.kill()
        self.process.communicate()


class Quorum:
    """Some of the ranks."""

    uuid = 0

    def __init__(self, ranks):
        self.ranks = ranks
        self.handles = [self._one(rank, "handle") for rank in ranks]
        self.members = []

    def gather(self, *numbers):
        self.members = [self.ranks[number] for number in numbers]
        Quorum.uuid += 1
        handles = [self.handles[number] for number in numbers]
        self.all("configure", uuid=Quorum.uuid, handles=handles)

    def all(self, name, **arguments):
        """Ask all members at once, and return their answers."""
        for rank in self.members:
            rank.ask(name, **arguments)
        return [rank.answer() for rank in self.members]

    def one(self, number, name, **arguments):
        return self._one(self.ranks[number], name, **arguments)

    def agree(self, name, **arguments):
        """Return the answer, which must be the same from all."""
        answers = self.all(name, **arguments)
        assert all(answer == answers[0] for answer in answers)
        return answers[0]

    @staticmethod
    def _one(rank, name, **arguments):
        rank.ask(name, **arguments)
        return rank.answer()


@contextlib.contextmanager
def started(timeout_s, ranks=3, devices=("cpu",), backend="Gloo"):
    """Yield an empty quorum of so many ranks, which take turns on the devices."""
    numbered = ((number, devices[number % len(devices)]) for number in range(ranks))
    ranks = [Rank(number, timeout_s, device, backend) for number, device in numbered]
    try:
        yield Quorum(ranks)
    finally:
        for rank in ranks:
            rank.end()
