"""The parts of a view: who the workers are, how they are, and what is known besides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from torchloom_core.interface.arrays import Floats, Ints, frozen
from torchloom_core.interface.faults_of_workers import FaultsOf
from torchloom_core.wire.events import Fault
from torchloom_core.wire.limits import KnobValue
from torchloom_core.wire.messages import KnobSpec
from torchloom_core.wire.placement import Placement


@dataclass(frozen=True, eq=False)
class Roster:
    """The workers of a view, row by row; the same object until a worker registers.

    Attributes
    ----------
    workers : tuple of str
        Their ids.
    placement : tuple of Placement
        Where each stands in the run.
    labels : tuple of mapping of str to (str or float)
        Fixed properties of each.
    can_be_probed : (workers,) bool
        Whether links from and to the worker can be probed.

    Examples
    --------
    >>> from torchloom_core.plugin import Roster
    >>> from torchloom_core.testing import view_of
    >>> roster: Roster = view_of(workers=2, role=["trainer", "rollout"]).roster
    >>> roster.role, roster.placement[1].group
    (('trainer', 'rollout'), 'g1')
    """

    workers: tuple[str, ...]
    placement: Sequence[Placement]
    labels: Sequence[Mapping[str, str | float]]
    can_be_probed: NDArray[np.bool_]
    _labelled: dict[tuple[str, ...], "Roster"] = field(default_factory=dict, init=False)
    _parts: dict[tuple[str, ...], "RosterPart"] = field(default_factory=dict, init=False)

    def of_roles(self, roles: tuple[str, ...]) -> "RosterPart":
        """Return the workers of some roles, and their rows."""
        if roles not in self._parts:
            rows = np.flatnonzero([role in roles for role in self.role])
            pick = rows.tolist()
            part = (
                self
                if len(rows) == len(self.workers)
                else Roster(
                    workers=tuple(self.workers[row] for row in pick),
                    placement=tuple(self.placement[row] for row in pick),
                    labels=tuple(self.labels[row] for row in pick),
                    can_be_probed=frozen(self.can_be_probed[rows]),
                )
            )
            self._parts[roles] = RosterPart(part, rows)
        return self._parts[roles]

    def with_labels(self, names: tuple[str, ...]) -> "Roster":
        """Return this roster with only these labels; the same object if it has no others."""
        if names not in self._labelled:
            self._labelled[names] = self
            if not all(row.keys() <= {*names} for row in self.labels):
                self._labelled[names] = replace(
                    self,
                    labels=tuple(
                        MappingProxyType({name: row[name] for name in names if name in row})
                        for row in self.labels
                    ),
                )
        return self._labelled[names]

    @cached_property
    def own_faults(self) -> FaultsOf:
        """The part of the faults that is of these workers or of a node."""
        return FaultsOf(self.workers)

    @cached_property
    def role(self) -> tuple[str, ...]:
        """The role of each worker."""
        return tuple(place.role for place in self.placement)

    @cached_property
    def group(self) -> tuple[str, ...]:
        """The replica group of each worker."""
        return tuple(place.group for place in self.placement)

    @cached_property
    def stage(self) -> Ints:
        """The pipeline stage of each worker."""
        stages = (place.stage for place in self.placement)
        return frozen(np.fromiter(stages, np.int64, len(self.placement)))

    @cached_property
    def node(self) -> tuple[str, ...]:
        """The node of each worker, "" if unknown."""
        return tuple(place.node for place in self.placement)

    @cached_property
    def rack(self) -> tuple[str, ...]:
        """The rack of each worker, "" if unknown."""
        return tuple(place.rack for place in self.placement)


class RosterPart(NamedTuple):
    """The workers of some roles, and their rows ``(workers,)`` in the whole roster."""

    roster: Roster
    rows: NDArray[np.intp]


class Conditions(NamedTuple):
    """How the workers are at the tick; the fields are attributes of the view."""

    state: Sequence[str]
    step: Ints
    heartbeat_age_s: Floats
    progress_age_s: Floats
    watched_s: Floats


class KnownKnobs(NamedTuple):
    """The knobs of all workers by name, and the present values of each.

    ``of_role`` has the specifications by role, if workers have several.
    """

    specs: Mapping[str, KnobSpec]
    values: Sequence[Mapping[str, KnobValue]]
    of_role: Mapping[str, Mapping[str, KnobSpec]] = {}


class KnownFaults(NamedTuple):
    """Faults, oldest first, and the same by place."""

    all: Sequence[Fault]
    of: Mapping[str, tuple[Fault, ...]]


class Metrics(Protocol):
    """The telemetry of a view: the live ring buffers, or copies of them."""

    def latest(self, metric: str) -> Floats:
        """Return ``(workers,)`` newest values, NaN where missing or stale."""

    def window(self, metric: str, seconds: float) -> Floats:
        """Return ``(workers, samples)``, oldest first, NaN where missing."""

    def age_s(self, metric: str) -> Floats:
        """Return ``(workers,)`` seconds since the last valid sample, inf without one."""

    def last_known(self, metric: str) -> Floats:
        """Return ``(workers,)`` newest values, however old, NaN without one."""

    def moved_s(self, metric: str) -> Floats:
        """Return ``(workers,)`` seconds since the value first changed, NaN if it never did."""

    def rested_s(self, metric: str) -> Floats:
        """Return ``(workers,)`` seconds from the first sample to the first change, or NaN."""

    def changed_s(self, metric: str) -> Floats:
        """Return ``(workers,)`` seconds since the value last changed, NaN if it never did."""


class LighthouseRows(NamedTuple):
    """The last quorum, as torchLoom's lighthouse reports it, by the rows of a view.

    Attributes
    ----------
    quorum_id : int
        The id of the last quorum.
    waiting_s : float
        How long a group had been waiting for the next quorum at the time of the report.
    member : (workers,) bool
        Whether the worker is a member.
    failed : (workers,) bool
        Whether its group requests the next quorum because its last step failed.
    silent : (workers,) bool
        Whether its group requests no quorum although others wait.
    lost : (workers,) bool
        Whether its process has ended, or its group left, since that quorum.

    Examples
    --------
    >>> from torchloom_core.plugin import LighthouseRows
    >>> from torchloom_core.testing import view_of
    >>> view_of(workers=2).lighthouse is None  # where it is torchft's own
    True
    >>> seen: LighthouseRows = view_of(workers=2, lighthouse={"silent": ["w1"]}).lighthouse
    >>> seen.silent
    array([False,  True])
    """

    quorum_id: int
    waiting_s: float
    member: NDArray[np.bool_]
    failed: NDArray[np.bool_]
    silent: NDArray[np.bool_]
    lost: NDArray[np.bool_]
