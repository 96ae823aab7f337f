"""The interface of a kind of action, used by the safety limits, arbiter and execution.

The package of a capability has its kind in the module ``kind``; docs/actions.md shows how one is
added.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from torchloom_core.live.fleet.cordons import Cordons
from torchloom_core.live.kernel.actions.run import Run
from torchloom_core.wire.actions import Action, name_of, plain_summary
from torchloom_core.wire.commands import Command
from torchloom_core.wire.decisions import Output
from torchloom_core.wire.operations import Operation
from torchloom_core.wire.plans import Plan, Stage, missed_text

A = TypeVar("A", bound=Action)


class Subject(NamedTuple):
    """The group, worker or node that an action concerns; all empty: the run."""

    group: str = ""
    worker: str = ""
    node: str = ""


class Stages(NamedTuple):
    """The commands of a plan, stage after stage; without any, the Weaver carries it out at once.

    ``await_training`` are the workers that must train before the second stage is issued.
    """

    stages: tuple[Stage, ...] = ()
    await_training: tuple[str, ...] = ()


class ActionKind(ABC, Generic[A]):
    """One kind of action; it has no state, which is in the action, the plan and the run.

    Attributes
    ----------
    message : type
        The struct that is proposed.
    operations : tuple of type
        The operations that its stages may send to workers.
    high_impact : bool
        Whether the circuit breaker counts it: it takes GPUs out of the run for a time, or may
        affect the whole run.
    moves_group, without_replacement : bool
        Whether its group does not train meanwhile; whether no other group takes its place.
    changes_run : bool
        Whether it has an effect on the run.
    skips_price_check : bool
        Whether it needs no net gain.
    is_alarm : bool
        Whether a proposal of it means that its subject has failed or will fail.
    replaces : bool
        Whether a newer one supersedes one that is under way on the same target.
    all_or_none : bool
        Whether it is undone on all workers if one fails.
    rolls_back : bool
        Whether a fenced change is rolled back on all ranks if it failed on one.
    side_by_side : bool
        Whether all stages are issued at once.
    is_answered : bool
        Whether an action without commands ends only once :meth:`is_done`.
    """

    message: ClassVar[type[Any]]
    operations: ClassVar[tuple[type[Operation], ...]] = ()
    high_impact: ClassVar[bool] = False
    moves_group: ClassVar[bool] = False
    without_replacement: ClassVar[bool] = False
    changes_run: ClassVar[bool] = True
    skips_price_check: ClassVar[bool] = False
    is_alarm: ClassVar[bool] = False
    replaces: ClassVar[bool] = False
    all_or_none: ClassVar[bool] = False
    rolls_back: ClassVar[bool] = False
    side_by_side: ClassVar[bool] = False
    is_answered: ClassVar[bool] = False

    # --- what it acts on ---

    def target(self, action: A) -> str:
        """Return the group or node it acts on, or its kind and worker.

        Two actions with the same target are in conflict.
        """
        group, worker, node = self.subject(action)
        if group or node:
            return f"{GROUP}{group}" if group else f"node:{node}"
        return ":".join(filter(None, (name_of(action), worker)))

    def subject(self, action: A) -> Subject:
        """Return the group, worker and node that the action's fields name."""
        return Subject(*(getattr(action, name, None) or "" for name in Subject._fields))

    def moves(self, action: A) -> frozenset[str]:
        """Return the replica groups that do not train while it is under way."""
        return frozenset({self.subject(action).group}) if self.moves_group else frozenset()

    def takes(self, action: A) -> frozenset[str]:
        """Return the replica groups that leave without a replacement."""
        return self.moves(action) if self.without_replacement else frozenset()

    def alert_text(self, action: A) -> str:
        """Return what it reports to people, an empty string if it does not."""
        return ""

    def cordons(self, action: A) -> frozenset[str]:
        """Return the nodes that it cordons."""
        return frozenset()

    # --- before it is begun ---

    @abstractmethod
    def obstacle(self, action: A, run: Run) -> str:
        """Return why the action cannot be carried out, or an empty string."""

    def warning(self, action: A, run: Run) -> str:
        """Return why a person should confirm it, such as an unusual value, or an empty string."""
        return ""

    def price_gpu_s(self, action: A, run: Run) -> float:
        """Return its default cost, GPU-seconds."""
        return 0.0

    # --- how it is carried out ---

    def stages(self, action: A, run: Run) -> Stages:
        """Return its commands; called only if there is no obstacle."""
        return Stages()

    def at_once(self, action: A, cordons: Cordons, now_ns: int) -> None:
        """Apply what needs no worker, once it is granted or read from a record."""

    def granted(self, action: A, run: Run) -> list[Output]:
        """Store the desired value, and return the outputs that announce it."""
        return []

    def superseded(self, action: A, run: Run) -> Iterable[Command]:
        """Return the commands in flight that it supersedes."""
        return ()

    def calls_off(self, action: A) -> tuple[str, str]:
        """Return the target whose plan it calls off, and why; empty strings for none."""
        return "", ""

    def begin(self, plan: Plan, run: Run) -> list[Output]:
        """Prepare for a plan that begins, before its first commands."""
        return []

    def is_done(self, plan: Plan, run: Run) -> bool:
        """Return whether a plan without further commands has ended."""
        return True

    def trouble(self, plan: Plan, run: Run) -> str:
        """Return why the plan must end with commands still open, or an empty string."""
        return ""

    def end(self, plan: Plan, trouble: str, run: Run) -> list[Output]:
        """Clean up after a plan that ended; ``trouble`` is why it failed, or empty."""
        return []

    def restored(self, plan: Plan, run: Run) -> None:
        """Take over a plan of an earlier Weaver."""

    def undone(self, action: A, began_ns: int, run: Run) -> list[Output]:
        """Drop what :meth:`granted` stored at ``began_ns``: no worker applied it."""
        return []

    # --- in words ---

    @abstractmethod
    def summary(self, action: A, plan: Plan, run: Run) -> str:
        """Return what was done, for the outcome."""

    def shortfall(self, action: A, plan: Plan, run: Run) -> str:
        """Return which commands of a plan were not applied."""
        return missed_text(plan)

    def describe(self, action: Mapping[str, Any]) -> str:
        """Return a recorded action in a few words."""
        return plain_summary(action)


GROUP = "group:"
"""Before the name of a replica group in a target."""
