"""What the kernel asks of a kind of action; the rails, the arbiter and the execution know no more.

The message of a kind is in :mod:`torchloom_core.wire.actions`; docs/actions.md shows how a kind
is added.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from torchloom_core.fleet.cordons import Cordons
from torchloom_core.kernel.actions.run import Run
from torchloom_core.wire.actions import Action
from torchloom_core.wire.events import Output
from torchloom_core.wire.messages import Command, Deed
from torchloom_core.wire.plans import Plan, Stage

A = TypeVar("A", bound=Action)


class Subject(NamedTuple):
    """What an action is about; all of it empty: the run."""

    group: str = ""
    worker: str = ""
    node: str = ""


class Stages(NamedTuple):
    """The commands of a plan, stage after stage; without any the Weaver does it alone, at once.

    ``await_training`` are the workers that must be seen training after the first stage.
    """

    stages: tuple[Stage, ...] = ()
    await_training: tuple[str, ...] = ()


class ActionKind(ABC, Generic[A]):
    """One kind of action.

    A kind keeps nothing: what there is to know stands in the action, the plan and the run.

    Attributes
    ----------
    message : type
        The struct of :mod:`torchloom_core.wire.actions`.
    deeds : tuple of type
        What workers may be told by its stages.
    high_impact : bool
        Whether it takes GPUs out of a run, if only for a moment: the circuit breaker counts it.
    changes_run : bool
        Whether it does anything to a run.
    is_free : bool
        Whether it need not be worth more than doing nothing, and says all there is to say.
    is_alarm : bool
        Whether to propose it is to say that its subject has failed or will.
    replaces : bool
        Whether a newer one takes the place of one that is under way on the same target.
    all_or_none : bool
        Whether what some workers did is undone where others did not.
    """

    message: ClassVar[type[Any]]
    deeds: ClassVar[tuple[type[Deed], ...]] = ()
    high_impact: ClassVar[bool] = False
    changes_run: ClassVar[bool] = True
    is_free: ClassVar[bool] = False
    is_alarm: ClassVar[bool] = False
    replaces: ClassVar[bool] = False
    all_or_none: ClassVar[bool] = False

    # --- what it acts on ---

    @abstractmethod
    def target(self, action: A) -> str:
        """Return what the action acts on; two actions on one target are in conflict."""

    def subject(self, action: A) -> Subject:
        """Return what the action is about, as people see it."""
        del action
        return Subject()

    def moves(self, action: A) -> frozenset[str]:
        """Return the replica groups that do not train while it is under way."""
        del action
        return frozenset()

    def takes(self, action: A) -> frozenset[str]:
        """Return the replica groups of which nobody takes the place afterwards."""
        del action
        return frozenset()

    def cordons(self, action: A) -> frozenset[str]:
        """Return the nodes on which nobody new is put from then on."""
        del action
        return frozenset()

    # --- before it is begun ---

    @abstractmethod
    def obstacle(self, action: A, run: Run) -> str:
        """Return why it cannot be carried out at all, or nothing."""

    def doubt(self, action: A, run: Run) -> str:
        """Return why it may be a slip of a person's finger although it is possible, or nothing."""
        del action, run
        return ""

    # --- how it is carried out ---

    @abstractmethod
    def stages(self, action: A, run: Run) -> Stages:
        """Return the commands that it takes; asked where there is no obstacle."""

    def at_once(self, action: A, cordons: Cordons, now_ns: int) -> None:
        """Do what the Weaver does without any worker, when it is granted or read from a record."""
        del action, cordons, now_ns

    def granted(self, action: A, run: Run) -> list[Output]:
        """Keep what is wanted from now on, and return what is to be told of it."""
        del action, run
        return []

    def superseded(self, action: A, run: Run) -> Iterable[Command]:
        """Return the commands under way whose place it takes."""
        del action, run
        return ()

    def calls_off(self, action: A) -> tuple[str, str]:
        """Return the target whose plan ends when this one begins, and why; empty if none does."""
        del action
        return "", ""

    def begin(self, plan: Plan, run: Run) -> list[Output]:
        """Take note that the plan begins, before its first commands."""
        del plan, run
        return []

    def trouble(self, plan: Plan, run: Run) -> str:
        """Return why the plan must end although commands of it are open, or nothing."""
        del plan, run
        return ""

    def end(self, plan: Plan, trouble: str, run: Run) -> list[Output]:
        """Take note that the plan has ended, for ``trouble`` if there was any."""
        del plan, trouble, run
        return []

    def restored(self, plan: Plan, run: Run) -> None:
        """Take note of a plan that an earlier Weaver left."""
        del plan, run

    def undone(self, action: A, run: Run) -> list[Output]:
        """Forget what :meth:`granted` kept, since nobody did it."""
        del action, run
        return []

    # --- in words ---

    @abstractmethod
    def summary(self, plan: Plan, run: Run) -> str:
        """Return what was done, for the outcome."""

    @abstractmethod
    def wish(self, action: Mapping[str, Any]) -> str:
        """Return the action in a few words, from what a record holds of it."""


def group_target(group: str) -> str:
    """Return the target of what acts on a replica group."""
    return f"{GROUP}{group}"


GROUP = "group:"
"""Before the name of a replica group in a target."""


def workers_text(plan: Plan) -> str:
    """Return how many workers the plan's last stage told something."""
    count = len(plan.commands)
    return "1 worker" if count == 1 else f"{count} workers"
