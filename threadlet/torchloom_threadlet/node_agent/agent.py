"""A node's agent: keeps one worker process running, that of the role it was assigned."""

import contextlib
import logging
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from torchloom_core.wire.placement import NODE_AGENT, ROLES_LABEL
from torchloom_threadlet import attach
from torchloom_threadlet.capability import OperationError
from torchloom_threadlet.loom import Loom

_log = logging.getLogger(__name__)
_LOOK_S, _STEP_S = 0.1, 1.0
_LABELS = "TORCHLOOM_LABELS"
_AGAIN_S, _LONGEST_S, _LONG_RUN_S = 0.5, 30.0, 60.0
"""Pauses before a failed worker is started again; one that ran longer had no trouble to start."""

_NOT_STARTED = 127  # a shell's status for that

_LEAVE_S, _TERM_S = 60.0, 10.0
"""How long a drained worker may take to end before SIGTERM, and a terminated one until SIGKILL."""


class NodeAgent:
    """Runs the programs of a node, one at a time.

    Parameters
    ----------
    programs : mapping of str to sequence of str
        The command of each role.
    role : str
        The role to begin with.
    node : str
        The node's name; also that of its replica group, if ``TORCHLOOM_GROUP`` is not set.
    linger_s : float
        How long to wait for another role once a worker has ended with status 0, in seconds.
    """

    def __init__(
        self, programs: Mapping[str, Sequence[str]], role: str, node: str, linger_s: float
    ) -> None:
        self._programs, self._node, self._linger_s = programs, node, linger_s
        self._wanted = self._role = role
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._started_s = self._ended_s = self._ordered_s = 0.0
        self._pause_s = _AGAIN_S

    def run(self) -> None:
        """Run until :meth:`stop`, or until the worker has finished and no other role came."""
        with _roles_as_label(self._programs):
            loom = attach(role=NODE_AGENT, group=self._node, rank=0, node=self._node)
        loom.on("start_role", self.start_role)
        threading.Thread(target=self._step, args=(loom,), daemon=True).start()
        try:
            self._start()
            while not self._stopping.wait(_LOOK_S) and self._look(time.monotonic()):
                pass
        finally:
            self._end(_TERM_S)
            loom.close()

    def stop(self) -> None:
        """End the worker and this agent."""
        self._stopping.set()

    def start_role(self, role: str) -> None:
        """Run another role once the present worker has ended.

        Raises
        ------
        OperationError
            If the agent has no program for it.
        """
        if role not in self._programs:
            raise OperationError(f"need one of the roles {', '.join(self._programs)}, was {role}")
        self._ordered_s, self._wanted = time.monotonic(), role

    def _look(self, now_s: float) -> bool:
        """Start what has to be started; return whether to go on."""
        status = _NOT_STARTED if self._process is None else self._process.poll()
        if self._wanted != self._role:
            if status is None and now_s - self._ordered_s < _LEAVE_S:
                return True
            self._end(_TERM_S)
            self._role, self._pause_s, self._ended_s = self._wanted, _AGAIN_S, 0.0
            self._start()
        elif status is not None and not self._ended_s:
            self._ended_s = now_s
            _log.info("%s: role %s ended with status %d", self._node, self._role, status)
        elif status == 0:
            return now_s - self._ended_s < self._linger_s
        elif status is not None and now_s - self._ended_s >= self._pause_s:
            ran_s = self._ended_s - self._started_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_S) if ran_s < _LONG_RUN_S else _AGAIN_S
            self._start()
        return True

    def _start(self) -> None:
        command, own = self._programs[self._role], os.environ
        environment = {
            **own,
            "TORCHLOOM_ROLE": self._role,
            "TORCHLOOM_NODE": self._node,
            "TORCHLOOM_GROUP": own.get("TORCHLOOM_GROUP") or self._node,
        }
        self._started_s, self._ended_s = time.monotonic(), 0.0
        try:
            self._process = subprocess.Popen(command, env=environment)
        except OSError as error:  # it may just be replaced by another version
            self._process = None
            _log.warning("%s: role %s cannot be started: %s", self._node, self._role, error)
            return
        _log.info("%s: role %s runs as process %d", self._node, self._role, self._process.pid)

    def _end(self, wait_s: float) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(wait_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _step(self, loom: Loom) -> None:
        """Report that the agent lives; in a pause this thread waits, and not the agent."""
        while loom.step():
            time.sleep(_STEP_S)
        if not loom.inert:
            self.stop()  # it was drained


@contextlib.contextmanager
def _roles_as_label(roles: Mapping[str, object]) -> Iterator[None]:
    """Have the Weaver know which roles this node can run."""
    before = os.environ.get(_LABELS)
    own = f"{ROLES_LABEL}={' '.join(roles)}"
    os.environ[_LABELS] = f"{before},{own}" if before else own
    try:
        yield
    finally:
        if before is None:
            del os.environ[_LABELS]
        else:
            os.environ[_LABELS] = before
