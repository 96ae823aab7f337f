"""Send instructions to the lighthouse, and repeat them until its view confirms them.

Nothing is sent before a view arrives, so torchft's own lighthouse is not steered.
"""

from collections import deque
from collections.abc import Callable, Iterable

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.wire.decisions import Notice, Output
from torchloom_core.wire.steering import (
    Act,
    Expect,
    HoldBack,
    Leave,
    LighthouseView,
    Order,
    Steer,
)

_MAX_UNCONFIRMED = 1000
_ANSWER_NS = SECOND_NS // 2
"""A view sent within this time of an instruction may not reflect it yet."""

_TIMES, _WITHIN_NS = 5, 10 * SECOND_NS
"""Unconfirmed instructions are repeated at most this many times within this time."""


class Steering:
    """The instructions of one epoch, numbered from 1.

    Attributes
    ----------
    view : LighthouseView, optional
        The last view of the lighthouse; None without a torchLoom lighthouse.
    """

    def __init__(self, run: str, order: tuple[str, ...]) -> None:
        self._run = run
        self._order = order
        self._epoch = 0
        self._number = 0
        self._unconfirmed: dict[int, Steer] = {}
        self._missed_ns: dict[int, int] = {}
        self._held: tuple[str, ...] | None = None
        self._held_number = 0
        self._last_quorum_id = 0
        self._incarnation: int | None = None
        self._sent_ns: deque[int] = deque(maxlen=_TIMES)
        self.view: LighthouseView | None = None
        self._counted: frozenset[str] | None = None

    def begin(self, epoch: int) -> None:
        """Use this epoch from now on."""
        self._epoch = epoch

    def send(self, act: Act, reason: str) -> list[Output]:
        """Send an instruction, repeated until it is confirmed.

        Nothing is sent while too many are unconfirmed. Numbers have no gaps: the lighthouse applies
        an instruction only after the one before.
        """
        if self.view is None or len(self._unconfirmed) >= _MAX_UNCONFIRMED:
            return []
        self._number += 1
        steer = Steer(run=self._run, epoch=self._epoch, number=self._number, do=act, reason=reason)
        self._unconfirmed[self._number] = steer
        return [steer]

    def gone(self, replicas: Iterable[str], reason: str) -> list[Output]:
        """Report that these groups have left, if the lighthouse counts them as members."""
        if self.view is None:
            return []
        if self._counted is None:
            self._counted = frozenset(self.view.members).difference(self.view.lost)
        leaving = set(self._counted.intersection(replicas))
        for steer in self._unconfirmed.values() if leaving else ():
            if isinstance(steer.do, Leave):
                leaving.difference_update(steer.do.replicas)
        return self.send(Leave(replicas=tuple(sorted(leaving))), reason) if leaving else []

    def hold_back(self, names: Iterable[str]) -> list[Output]:
        """Set the groups to hold back from now on, if they changed.

        They are always sent once per epoch, as those of an earlier epoch are unknown.
        """
        held = tuple(sorted(names))
        sent = [] if held == self._held else self._send_held(held)
        if sent:
            self._held = held
        return sent

    def _send_held(self, held: tuple[str, ...]) -> list[Output]:
        sent = self.send(
            HoldBack(names=held), "they are standbys" if held else "there are no standbys"
        )
        self._held_number = self._number
        return sent

    @property
    def held(self) -> frozenset[str]:
        """The groups that are certainly held back: confirmed by a lighthouse that forms quorums."""
        view = self.view
        if view is None or not view.members or view.epoch != self._epoch:
            return frozenset()
        return frozenset(self._held or ()) if view.number >= self._held_number else frozenset()

    def receive(
        self, view: LighthouseView, training: Callable[[], Iterable[str]], now_ns: int
    ) -> list[Output]:
        """Take a view of the lighthouse; return the instructions that it still needs.

        ``training`` returns the lighthouse's names of the training groups. The rate of repetitions
        is limited, whatever the rate of views.
        """
        before, self.view, self._counted = self.view, view, None
        outputs: list[Output] = []
        if view.refused and (before is None or view.refused != before.refused):
            outputs.append(Notice(kind="steering", text=f"refused: {view.refused}"))
        if view.incarnation == self._incarnation and view.epoch == self._epoch:
            self._unconfirmed = {n: act for n, act in self._unconfirmed.items() if n > view.number}
            self._missed_ns = {n: self._missed_ns.get(n, now_ns) for n in self._unconfirmed}
        again: list[Output] = []
        may_send = len(self._sent_ns) < _TIMES or now_ns > self._sent_ns[0] + _WITHIN_NS
        if may_send and view.incarnation != self._incarnation:
            self._incarnation = view.incarnation
            again = [_of_lighthouse(view), *self._introduce(view, training())]
        elif may_send and view.epoch == self._epoch:
            missed_ns = self._missed_ns
            again = [
                steer
                for number, steer in self._unconfirmed.items()
                if now_ns - missed_ns.get(number, now_ns) > _ANSWER_NS
            ]
        if again:
            self._sent_ns.append(now_ns)
        outputs += again
        self._last_quorum_id = max(self._last_quorum_id, view.quorum_id)
        return outputs

    def _introduce(self, view: LighthouseView, training: Iterable[str]) -> list[Output]:
        """Return all standing instructions for a lighthouse that has just appeared."""
        again: list[Output] = list(self._unconfirmed.values())
        unconfirmed = {type(steer.do) for steer in self._unconfirmed.values()}
        names = tuple(sorted(training))
        if view.state == "new" and not view.members and names:
            expect = Expect(names=names, above=self._last_quorum_id)
            again += self.send(expect, "its state is lost, and these groups train")
        if self._order and Order not in unconfirmed:
            again += self.send(Order(names=self._order), "the config sets this order")
        if self._held is not None and HoldBack not in unconfirmed:
            again += self._send_held(self._held)
        return again


def _of_lighthouse(view: LighthouseView) -> Notice:
    found = "with restored state" if view.state == "restored" else "without earlier state"
    text = f"a lighthouse started {found}, at quorum {view.quorum_id}"
    return Notice(kind="lighthouse", text=text)
