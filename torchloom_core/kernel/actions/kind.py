"""The interface of a kind of action, for the safety limits, the arbiter and the execution.

The message of a kind is in :mod:`torchloom_core.wire.actions`; docs/actions.md shows how a kind
is added.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from torchloom_core.fleet.cordons import Cordons
from torchloom_core.kernel.actions.run import Run
from torchloom_core.wire.actions import Action, name_of, plain_summary
from torchloom_core.wire.events import Output
from torchloom_core.wire.messages import Command, Operation
from torchloom_core.wire.plans import Plan, Stage, missed_text

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
    operations : tuple of type
        What workers may be told by its stages.
    high_impact : bool
        Whether it takes GPUs out of a run, if only for a moment, or may hurt what all of it does:
        the circuit breaker counts it.
    moves_group, without_replacement : bool
        Whether its group does not train meanwhile; and whether nobody takes the group's place.
    changes_run : bool
        Whether it does anything to a run.
    skips_price_check : bool
        Whether it need not be worth more than doing nothing, and says all there is to say.
    is_alarm : bool
        Whether to propose it is to say that its subject has failed or will.
    replaces : bool
        Whether a newer one takes the place of one that is under way on the same target.
    all_or_none : bool
        Whether what some workers did is undone where others did not.
    is_set_back : bool
        Whether what all ranks do together is set back on all where it failed on one.
    side_by_side : bool
        Whether no stage waits for the one before.
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
    is_set_back: ClassVar[bool] = False
    side_by_side: ClassVar[bool] = False

    # --- what it acts on ---

    def target(self, action: A) -> str:
        """Return what the action acts on; two actions on one target are in conflict.

        That is a group or a node; what is about a worker is apart from what else is done to it.
        """
        group, worker, node = self.subject(action)
        if group or node:
            return f"{GROUP}{group}" if group else f"node:{node}"
        return ":".join(filter(None, (name_of(action), worker)))

    def subject(self, action: A) -> Subject:
        """Return what the action is about: what its fields of these names say."""
        return Subject(*(getattr(action, name, None) or "" for name in Subject._fields))

    def moves(self, action: A) -> frozenset[str]:
        """Return the replica groups that do not train while it is under way."""
        return frozenset({self.subject(action).group}) if self.moves_group else frozenset()

    def takes(self, action: A) -> frozenset[str]:
        """Return the replica groups whose place nobody takes afterwards."""
        return self.moves(action) if self.without_replacement else frozenset()

    def cordons(self, action: A) -> frozenset[str]:
        """Return the nodes on which nobody new is put from then on."""
        return frozenset()

    # --- before it is begun ---

    @abstractmethod
    def obstacle(self, action: A, run: Run) -> str:
        """Return why it cannot be carried out at all, or nothing."""

    def warning(self, action: A, run: Run) -> str:
        """Return why it may be a slip of a person's finger although it is possible, or nothing."""
        return ""

    def price_gpu_s(self, action: A, run: Run) -> float:
        """Return what it costs where nobody has said that, GPU-seconds."""
        return 0.0

    # --- how it is carried out ---

    def stages(self, action: A, run: Run) -> Stages:
        """Return the commands that it takes; asked where there is no obstacle."""
        return Stages()

    def at_once(self, action: A, cordons: Cordons, now_ns: int) -> None:
        """Do what the Weaver does without any worker, when it is granted or read from a record."""

    def granted(self, action: A, run: Run) -> list[Output]:
        """Keep what is wanted from now on, and return what is to be told of it."""
        return []

    def superseded(self, action: A, run: Run) -> Iterable[Command]:
        """Return the commands under way whose place it takes."""
        return ()

    def calls_off(self, action: A) -> tuple[str, str]:
        """Return the target whose plan ends when this one begins, and why; empty if none does."""
        return "", ""

    def begin(self, plan: Plan, run: Run) -> list[Output]:
        """Take note that the plan begins, before its first commands."""
        return []

    def trouble(self, plan: Plan, run: Run) -> str:
        """Return why the plan must end although commands of it are open, or nothing."""
        return ""

    def end(self, plan: Plan, trouble: str, run: Run) -> list[Output]:
        """Take note that the plan has ended, for ``trouble`` if there was any."""
        return []

    def restored(self, plan: Plan, run: Run) -> None:
        """Take note of a plan that an earlier Weaver left."""

    def undone(self, action: A, began_ns: int, run: Run) -> list[Output]:
        """Forget what :meth:`granted` kept at ``began_ns``, since no worker did it."""
        return []

    # --- in words ---

    @abstractmethod
    def summary(self, action: A, plan: Plan, run: Run) -> str:
        """Return what was done, for the outcome."""

    def shortfall(self, action: A, plan: Plan, run: Run) -> str:
        """Return what was not done of a plan of which some commands were not applied."""
        return missed_text(plan)

    def describe(self, action: Mapping[str, Any]) -> str:
        """Return the action in a few words, from what a record holds of it."""
        return plain_summary(action)


GROUP = "group:"
"""Before the name of a replica group in a target."""
