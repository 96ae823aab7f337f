"""The sockets that gloo opened to the peers of its quorum, and how to shut them down.

See :mod:`torchloom_threadlet.gloo_sockets`.
"""

import contextlib
import socket
import threading
import time
from typing import Any

from torchloom_threadlet.gloo_sockets import (
    DESCRIPTORS,
    bytes_moved,
    gloo_connections,
    shut,
    sockets,
)

_POLL_S = 0.02


GLOO = "torchft-gloo"


class Connections:
    """The connections of the present quorum of one process group on gloo.

    ``quiet_s``: before an error is passed on, own collectives in flight are waited for as long as a
    byte moves within this many seconds: two groups may wait for each other.
    """

    def __init__(self, pg: Any, quiet_s: float = 0.5) -> None:
        self._quiet_s = quiet_s
        self._quorum_id = -1
        self._inodes: frozenset[int] = frozenset()
        self._is_complete = False
        self._works: list[Any] = []
        self._in_step = True
        self._shut_at = -1
        self._reconfigure, self._allreduce = pg.reconfigure, pg.allreduce
        pg.reconfigure, pg.allreduce = self._reconfigured, self._issued

    def refusal(self, quorum_id: int) -> str:
        """Return why the connections of this quorum cannot be cut; "" if they can.

        An earlier quorum's connections are gone: nothing waits in them any more.
        """
        if quorum_id > self._quorum_id:
            return f"need the present quorum, {self._quorum_id}, was {quorum_id}"
        if not DESCRIPTORS.exists():
            return "connections can be cut on Linux only"
        if self._quorum_id == quorum_id and not self._is_complete:
            return f"the connections of quorum {quorum_id} are unknown in this process"
        return ""

    def cut(self, quorum_id: int) -> str:
        """Shut down the connections of this quorum, and return how many were open.

        They are identified by their inodes, so that no connection of a later quorum is hit, even if
        this quorum ends meanwhile.
        """
        inodes, present = self._inodes, self._quorum_id
        if quorum_id != present:
            return f"quorum {quorum_id} is over already, the present one is {present}"
        return f"{shut(inodes, socket.SHUT_RDWR)} connections of quorum {quorum_id} are shut down"

    def pass_error_on(self) -> None:
        """Pass an error on to waiting peers: this process takes no further part in this quorum.

        Only the sending half is shut down, and after all that is still sent: a peer that needs no
        more than that gets it, and commits its step as usual.
        """
        if not self._in_step or self._shut_at == self._quorum_id:
            return
        self._shut_at = self._quorum_id
        if self._in_flight():
            name = "torchloom-error"
            threading.Thread(target=self._shut_when_quiet, name=name, daemon=True).start()
        else:
            shut(self._inodes, socket.SHUT_WR)

    def begin_step(self) -> None:
        """Take errors from now on as those of this step."""
        self._in_step = True

    def end_step(self) -> None:
        """Take no more errors for this step, and release its collectives' tensors.

        The Manager discards errors that are reported between two steps.
        """
        self._in_step = False
        self._works = []

    def _reconfigured(self, opts: Any) -> Any:
        self._inodes, self._is_complete, self._works = frozenset(), False, []
        self._quorum_id = int(opts.uuid)
        before = frozenset(inode for inode, _ in sockets())
        configured = self._reconfigure(opts)
        peers = len(opts.handles) - 1
        with contextlib.suppress(OSError):
            self._inodes = gloo_connections(before, peers)
            self._is_complete = bool(self._inodes) or not peers
        return configured

    def _issued(self, *args: Any, **kwargs: Any) -> Any:
        work = self._allreduce(*args, **kwargs)
        self._works = [*filter(_is_in_flight, self._works), work]
        return work

    def _in_flight(self) -> bool:
        return any(map(_is_in_flight, self._works))

    def _shut_when_quiet(self) -> None:
        """Wait until the own other collectives end or stall, then shut the sending halves."""
        inodes = self._inodes
        moved, since = bytes_moved(inodes), time.monotonic()
        while self._in_flight() and inodes == self._inodes:
            if time.monotonic() - since > self._quiet_s:
                break
            time.sleep(_POLL_S)
            if (now := bytes_moved(inodes)) != moved:
                moved, since = now, time.monotonic()
        shut(inodes, socket.SHUT_WR)


def _is_in_flight(work: Any) -> bool:
    return not work.is_completed()
