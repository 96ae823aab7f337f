"""What the lighthouse is told, until its view says that it has heard it.

A run whose lighthouse is torchft's own is not steered: nothing is said before one is seen.
"""

from collections import deque
from collections.abc import Iterable

from torchloom_core.clock import SECOND_NS
from torchloom_core.wire.events import Notice, Output
from torchloom_core.wire.steering import (
    Act,
    Expect,
    HoldBack,
    Leave,
    LighthouseView,
    Order,
    Steer,
)

_MOST_UNHEARD = 1000
_ANSWER_NS = SECOND_NS // 2
"""A view that was on its way when something was said does not tell that it was not heard."""

_TIMES, _WITHIN_NS = 5, 10 * SECOND_NS
"""So many times within so long everything unheard is said again."""


class Steering:
    """The acts of one epoch, numbered from 1.

    Attributes
    ----------
    view : LighthouseView, optional
        What the lighthouse last said; None where there is none of ours.
    """

    def __init__(self, run: str, order: tuple[str, ...]) -> None:
        self._run = run
        self._order = order
        self._epoch = 0
        self._number = 0
        self._unheard: dict[int, Steer] = {}
        self._missed_ns: dict[int, int] = {}
        self._held: tuple[str, ...] | None = None
        self._held_number = 0
        self._last_quorum_id = 0
        self._life: int | None = None
        self._spoke_ns: deque[int] = deque(maxlen=_TIMES)
        self.view: LighthouseView | None = None

    def begin(self, epoch: int) -> None:
        """Speak under this epoch from now on."""
        self._epoch = epoch

    def send(self, act: Act, reason: str) -> list[Output]:
        """Say one thing, and again until it is heard; a lighthouse that is deaf is not spoken to.

        Numbers have no gaps: it takes an act only after the one before.
        """
        if self.view is None or len(self._unheard) >= _MOST_UNHEARD:
            return []
        self._number += 1
        steer = Steer(run=self._run, epoch=self._epoch, number=self._number, do=act, reason=reason)
        self._unheard[self._number] = steer
        return [steer]

    def gone(self, replicas: Iterable[str], reason: str) -> list[Output]:
        """Say that these groups have left, as far as the lighthouse counts on them."""
        if self.view is None:
            return []
        counted = set(self.view.members) - set(self.view.lost)
        for steer in self._unheard.values():
            if isinstance(steer.do, Leave):
                counted.difference_update(steer.do.replicas)
        leaving = tuple(sorted(counted.intersection(replicas)))
        return self.send(Leave(replicas=leaving), reason) if leaving else []

    def hold_back(self, names: Iterable[str]) -> list[Output]:
        """Say who is to be held back from now on, if that is news.

        It is the first time under each epoch: whom an earlier one held back is not known.
        """
        held = tuple(sorted(names))
        told = [] if held == self._held else self._send_held(held)
        if told:
            self._held = held
        return told

    def _send_held(self, held: tuple[str, ...]) -> list[Output]:
        told = self.send(HoldBack(names=held), "they stand by" if held else "nobody stands by")
        self._held_number = self._number
        return told

    @property
    def held(self) -> frozenset[str]:
        """Who is held back for certain: the lighthouse has heard it, and forms quorums."""
        view = self.view
        if view is None or not view.members or view.epoch != self._epoch:
            return frozenset()
        return frozenset(self._held or ()) if view.number >= self._held_number else frozenset()

    def receive(self, view: LighthouseView, training: Iterable[str], now_ns: int) -> list[Output]:
        """Take what the lighthouse sees; return what is still to be said to it.

        ``training`` are the names of the groups that train, as the lighthouse calls them. Only so
        often is something said again, or to a new life, however often it speaks.
        """
        known, self.view = self.view, view
        outputs: list[Output] = []
        if view.refused and (known is None or view.refused != known.refused):
            outputs.append(Notice(kind="steering", text=f"not done: {view.refused}"))
        if view.incarnation == self._life and view.epoch == self._epoch:
            self._unheard = {n: act for n, act in self._unheard.items() if n > view.number}
            self._missed_ns = {n: self._missed_ns.get(n, now_ns) for n in self._unheard}
        again: list[Output] = []
        may_speak = len(self._spoke_ns) < _TIMES or now_ns > self._spoke_ns[0] + _WITHIN_NS
        if may_speak and view.incarnation != self._life:
            self._life = view.incarnation
            again = [_of_lighthouse(view), *self._introduce(view, training)]
        elif may_speak and view.epoch == self._epoch:
            missed_ns = self._missed_ns
            again = [
                steer
                for number, steer in self._unheard.items()
                if now_ns - missed_ns.get(number, now_ns) > _ANSWER_NS
            ]
        if again:
            self._spoke_ns.append(now_ns)
        outputs += again
        self._last_quorum_id = max(self._last_quorum_id, view.quorum_id)
        return outputs

    def _introduce(self, view: LighthouseView, training: Iterable[str]) -> list[Output]:
        """Say to a lighthouse that has just appeared what holds until further notice."""
        again: list[Output] = list(self._unheard.values())
        said = {type(steer.do) for steer in self._unheard.values()}
        names = tuple(sorted(training))
        if view.state == "new" and not view.members and names:
            expect = Expect(names=names, above=self._last_quorum_id)
            again += self.send(expect, "its state is lost, and these train")
        if self._order and Order not in said:
            again += self.send(Order(names=self._order), "the config says so")
        if self._held is not None and HoldBack not in said:
            again += self._send_held(self._held)
        return again


def _of_lighthouse(view: LighthouseView) -> Notice:
    found = "with an earlier one's state" if view.state == "restored" else "without any state"
    text = f"a lighthouse is there, begun {found}, at quorum {view.quorum_id}"
    return Notice(kind="lighthouse", text=text)
