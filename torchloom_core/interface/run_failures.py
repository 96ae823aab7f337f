"""The observed failure rate of a run, and the share of failures that lose work.

For policies that weigh the cost of a failure; public, like :mod:`torchloom_core.plugin`.
"""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from torchloom_core.config.schema import Costs
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.faults import added
from torchloom_core.interface.view import FleetView
from torchloom_core.wire.events import Fault


class RunFailures:
    """The failures of the run, and the node-seconds of training in which they happened.

    Faults before the first look count if their nodes train then; the first one only starts the
    time span.

    Parameters
    ----------
    incident_s : float
        Faults of the run that are closer in time are one failure, seconds.

    Attributes
    ----------
    count : int
        Failures so far.
    nodes : int
        Training nodes now.
    per_s : float
        Estimated failures per second of a run of the present size; 0 before the first.
    several_nodes, several_racks : int
        Failures that lost more than one node, or all nodes of the run; and of these, the ones in
        more than one rack. A node counts as lost by a fault of its own, not by the exit of a
        worker: its sidecar has reported that.
    rollbacks : Rollbacks
        The failures since the first look that lost work.

    Examples
    --------
    >>> from torchloom_core.plugin import Fault, RunFailures
    >>> from torchloom_core.testing import view_of
    >>> failures, now_s = RunFailures(incident_s=300.0), 1_700_000_000.0
    >>> failures.look(view_of(workers=4, now_s=now_s), training=[0, 1, 2, 3])
    >>> crash = Fault(worker="w2", node="n2", kind="crash", ts_ns=int(now_s + 50) * 10**9, id="f1")
    >>> failures.look(view_of(workers=4, now_s=now_s + 60, faults=[crash]), training=[0, 1, 2, 3])
    >>> failures.count, failures.nodes, failures.node_s
    (1, 4, 240.0)
    >>> round(1.0 / failures.per_s, 1)
    60.0
    """

    def __init__(self, incident_s: float) -> None:
        self._incident_ns = round(incident_s * SECOND_NS)
        self._faults: Sequence[Fault] = ()
        self._training: tuple[Sequence[str], list[int]] = ((), [])
        self._places: frozenset[str] = frozenset()
        self._looked_ns = self._first_ns = self._last_ns = self._node_ns = 0
        self._lost: set[str] = set()
        self._reach = 0
        self.nodes = self.count = self.several_nodes = self.several_racks = 0
        self.rollbacks = Rollbacks()

    @property
    def node_s(self) -> float:
        """Node-seconds of training so far."""
        return self._node_ns / SECOND_NS

    @property
    def per_s(self) -> float:
        """Failures per second of a run of ``nodes``."""
        return self.count / self.node_s * self.nodes if self.node_s else 0.0

    def look(self, view: FleetView, training: list[int], save_s: float | None = None) -> None:
        """Count new failures; ``training`` are the rows of the training workers.

        ``save_s`` is what a save costs, seconds; by default ``costs.checkpoint_s``.
        """
        if not (self._looked_ns or training):
            return
        if self._looked_ns:
            self._node_ns += self.nodes * (view.now_ns - self._looked_ns)
        hit = self._places
        if self._training[0] is not view.node or self._training[1] != training:
            self._training = view.node, training
            nodes = {view.node[row] or view.workers[row] for row in training}
            self._places = frozenset(nodes.union(view.workers[row] for row in training))
            self.nodes = len(nodes)
            hit |= self._places
        watched = 0 if view.faults is self._faults else self._take(view, hit)
        if "paused" in view.state:
            self.rollbacks.forget()
        else:
            costs = view.costs if save_s is None else replace(view.costs, checkpoint_s=save_s)
            self.rollbacks.look(_step(view, training), view.now_ns, watched, costs)
        self._looked_ns = view.now_ns

    def _take(self, view: FleetView, hit: frozenset[str]) -> int:
        """Count the failures at these places; return how many came since the last look."""
        watched = 0
        since_ns = self._looked_ns - round(view.costs.detect_s * SECOND_NS)
        for fault in added(self._faults, view.faults):
            if not (fault.fatal and (fault.worker or fault.node) in hit):
                continue
            if self._is_new(fault.ts_ns):
                self.count += 1
                watched += fault.ts_ns >= since_ns
                self._lost, self._reach = set(), 0
            if not fault.worker:
                self._add_lost(fault.node, view)
        self._faults = view.faults
        if self._looked_ns:
            return watched
        if self.count:
            self._node_ns = self.nodes * (view.now_ns - self._first_ns)
            self.count -= 1
        return 0

    def _add_lost(self, node: str, view: FleetView) -> None:
        """Add a lost node to the present failure."""
        self._lost.add(node)
        if len(self._lost) < min(2, self.nodes):
            return
        racks = {rack for at, rack in zip(view.node, view.rack, strict=True) if at in self._lost}
        reach = 2 if len(racks - {""}) > 1 else 1
        self.several_nodes += self._reach == 0
        self.several_racks += self._reach < reach == 2
        self._reach = max(self._reach, reach)

    def _is_new(self, ts_ns: int) -> bool:
        """Return whether a fault at this time is a new failure."""
        is_new = not self._last_ns or abs(ts_ns - self._last_ns) > self._incident_ns
        self._first_ns = self._first_ns or ts_ns
        self._last_ns = max(ts_ns, self._last_ns)
        return is_new


def _step(view: FleetView, training: list[int]) -> int:
    """Return the highest step of the training workers, -1 if there are none."""
    return int(np.max(view.step[training])) if training else -1


class Rollbacks:
    """The number of watched failures that rolled the run back.

    A failure is watched from the last look before it until the run's highest step rises after
    it; a rise within ``detect_s`` is ignored, as it may be a late report. The lost work is how
    far the step fell, or how far the run is behind its pace, less the ``detect_s + restart_s`` of
    any restart: between rare looks the step may fall and rise unseen. A loss above two saves and
    two steps, the error of the pace, is a rollback. The pace is that of all time without an open
    failure.

    Attributes
    ----------
    watched, count : int
        Failures whose watch has ended, and how many of them were rollbacks.
    """

    def __init__(self) -> None:
        self._from_step = self._last_step = -1
        self._from_ns = self._noticed_ns = 0
        self._open = 0
        self._highest = self._fell = 0
        self._clean_steps = self._clean_ns = 0
        self.watched = self.count = 0

    @property
    def share(self) -> float:
        """The share of failures that roll the run back, with one rollback as prior."""
        return (1 + self.count) / (1 + self.watched)

    def look(self, step: int, now_ns: int, failures: int, costs: Costs) -> None:
        """Add the run's step, -1 if unknown, and the number of new failures."""
        if failures and self._from_step >= 0:
            self._noticed_ns = self._noticed_ns if self._open else now_ns
            self._open += failures
        if step < 0:
            if not self._open:
                self.forget()
            return
        if self._open:
            self._highest = max(self._highest, step)
            self._fell = max(self._fell, self._highest - step)
            rises, self._last_step = step > self._last_step, step
            if not rises or now_ns - self._noticed_ns < costs.detect_s * SECOND_NS:
                return
            self._close(step, now_ns, costs)
        elif 0 <= self._from_step <= step:
            self._clean_steps += step - self._from_step
            self._clean_ns += now_ns - self._from_ns
        self._from_step = self._last_step = self._highest = step
        self._from_ns = now_ns

    def forget(self) -> None:
        """Start anew after a time in which the run was paused."""
        self._from_step, self._open, self._fell = -1, 0, 0

    def _close(self, step: int, now_ns: int, costs: Costs) -> None:
        """Decide whether the open failures were rollbacks, if the pace is known."""
        if self._clean_steps:
            step_s = self._clean_ns / self._clean_steps / SECOND_NS
            late_s = (now_ns - self._from_ns) / SECOND_NS - (step - self._from_step) * step_s
            unseen_s = late_s - costs.detect_s - costs.restart_s
            is_rollback = max(self._fell * step_s, unseen_s) > 2.0 * (costs.checkpoint_s + step_s)
            self.watched += self._open
            self.count += self._open * is_rollback
        self._open = self._fell = 0
