"""A kind of action from another package: whatever its code does, the Weaver goes on."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar, get_args

from torchloom_core.floor.errors import PluginError
from torchloom_core.interface.foreign import one_line, text_of
from torchloom_core.live.fleet.cordons import Cordons
from torchloom_core.live.kernel.actions.kind import ActionKind, Stages, Subject
from torchloom_core.live.kernel.actions.run import Run
from torchloom_core.wire.actions import Action, name_of
from torchloom_core.wire.commands import Command
from torchloom_core.wire.decisions import Output
from torchloom_core.wire.limits import MAX_TEXT
from torchloom_core.wire.operations import Operation
from torchloom_core.wire.plans import Plan, Stage

_FLAGS = tuple(ActionKind.__annotations__)
_OUTPUTS = get_args(Output)
_log = logging.getLogger("torchloom")
_R = TypeVar("_R")


class GuardedKind(ActionKind[Any]):
    """Asks a kind, and answers itself what the kind fails to.

    A kind that fails refuses the action, or ends its plan as failed; the text names it. It has no
    memory of earlier failures, so that a replay decides as the Weaver did.
    """

    def __init__(self, name: str, kind: ActionKind[Any]) -> None:
        self._name = name
        self._kind = kind
        self._logged: set[str] = set()
        for flag in _FLAGS:
            setattr(self, flag, getattr(kind, flag))

    def target(self, action: Action) -> str:
        """Return its target, by default the name of the kind."""
        return self._ask("target", lambda _: name_of(action), str, action)

    def subject(self, action: Action) -> Subject:
        """Return its subject, by default the run."""
        return self._ask("subject", lambda _: Subject(), Subject, action)

    def moves(self, action: Action) -> frozenset[str]:
        """Return the groups that it moves."""
        return self._ask("moves", lambda _: frozenset(), frozenset, action)

    def takes(self, action: Action) -> frozenset[str]:
        """Return the groups that it takes."""
        return self._ask("takes", lambda _: frozenset(), frozenset, action)

    def alert_text(self, action: Action) -> str:
        """Return what it reports."""
        return self._ask("alert_text", lambda _: "", str, action)

    def cordons(self, action: Action) -> frozenset[str]:
        """Return the nodes that it cordons."""
        return self._ask("cordons", lambda _: frozenset(), frozenset, action)

    def obstacle(self, action: Action, run: Run) -> str:
        """Return why it cannot be done: also that the kind has failed."""
        return self._ask("obstacle", str, str, action, run)

    def warning(self, action: Action, run: Run) -> str:
        """Return why a person should confirm it."""
        return self._ask("warning", str, str, action, run)

    def price_gpu_s(self, action: Action, run: Run) -> float:
        """Return its price."""
        price = float(self._ask("price_gpu_s", lambda _: 0.0, (int, float), action, run))
        return price if math.isfinite(price) else 0.0

    def stages(self, action: Action, run: Run) -> Stages:
        """Return its commands; PluginError if the kind fails."""

        def fail(problem: str) -> Stages:
            raise PluginError(problem)

        found = self._ask("stages", fail, Stages, action, run)
        if all(map(_can_be_sent, found.stages)):
            return found
        return fail(f"capability {self._name}: stages: need Stage objects of Run.stage")

    def at_once(self, action: Action, cordons: Cordons, now_ns: int) -> None:
        """Apply it."""
        self._ask("at_once", lambda _: None, object, action, cordons, now_ns)

    def granted(self, action: Action, run: Run) -> list[Output]:
        """Return what announces it."""
        return self._outputs("granted", action, run)

    def superseded(self, action: Action, run: Run) -> Iterable[Command]:
        """Return the commands that it supersedes."""
        found: Iterable[Command] = self._ask("superseded", lambda _: (), (list, tuple), action, run)
        return [command for command in found if isinstance(command, Command)]

    def calls_off(self, action: Action) -> tuple[str, str]:
        """Return the target whose plan it calls off."""
        found = self._ask("calls_off", lambda _: ("", ""), tuple, action)
        return found if [*map(type, found)] == [str, str] else ("", "")

    def begin(self, plan: Plan, run: Run) -> list[Output]:
        """Prepare for a plan."""
        return self._outputs("begin", plan, run)

    def trouble(self, plan: Plan, run: Run) -> str:
        """Return why the plan must end: also that the kind has failed."""
        return self._ask("trouble", str, str, plan, run)

    def is_done(self, plan: Plan, run: Run) -> bool:
        """Return whether a plan without further commands has ended: also if the kind has failed."""
        return self._ask("is_done", lambda _: True, bool, plan, run)

    def end(self, plan: Plan, trouble: str, run: Run) -> list[Output]:
        """Clean up."""
        return self._outputs("end", plan, trouble, run)

    def restored(self, plan: Plan, run: Run) -> None:
        """Take over a plan."""
        self._ask("restored", lambda _: None, object, plan, run)

    def undone(self, action: Action, began_ns: int, run: Run) -> list[Output]:
        """Drop what was granted."""
        return self._outputs("undone", action, began_ns, run)

    def summary(self, action: Action, plan: Plan, run: Run) -> str:
        """Return what was done."""
        return self._ask("summary", str, str, action, plan, run)

    def shortfall(self, action: Action, plan: Plan, run: Run) -> str:
        """Return what was not done."""
        default = super().shortfall
        return self._ask("shortfall", lambda _: default(action, plan, run), str, action, plan, run)

    def describe(self, action: Mapping[str, Any]) -> str:
        """Return a recorded action in a few words."""
        default = super().describe
        return self._ask("describe", lambda _: default(action), str, action)

    def _outputs(self, method: str, *arguments: Any) -> list[Output]:
        found: list[Any] = self._ask(method, lambda _: [], (list, tuple), *arguments)
        return [output for output in found if isinstance(output, _OUTPUTS)]

    def _ask(self, method: str, instead: Callable[[str], _R], wanted: Any, *arguments: Any) -> _R:
        """Return what a method of the kind returns, or else ``instead`` of what was wrong."""
        try:
            found = getattr(self._kind, method)(*arguments)
            if isinstance(found, Iterator):
                found = list(found)
            if isinstance(found, str):
                found = text_of(found)[:MAX_TEXT]
            if isinstance(found, wanted):
                answer: _R = found
                return answer
            problem = f"need another type, was {type(found).__name__}"
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - the code of anyone's package
            problem = one_line(error)
        text = f"capability {self._name}: {method}: {problem}"
        if method not in self._logged:
            self._logged.add(method)
            _log.warning("%s", text)
        return instead(text)


def _can_be_sent(stage: Any) -> bool:
    return (
        isinstance(stage, Stage)
        and isinstance(stage.operation, Operation)
        and all((type(w), type(n)) == (str, int) for w, n in stage.incarnations)
    )
