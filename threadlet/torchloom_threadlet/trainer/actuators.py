"""What a script and its adapter let operations use: knobs, functions, connections."""

from typing import Any, Protocol

from torchloom_threadlet.trainer.knob_table import KnobTable


class Connections(Protocol):
    """The connections to peers, as an adapter knows them."""

    def refusal(self, quorum_id: int) -> str:
        """Return why the connections of this quorum cannot be shut down; "" if they can."""

    def cut(self, quorum_id: int) -> str:
        """Shut down the connections of this quorum only; return what was done."""


def _name(function: Any) -> tuple[object, ...]:
    """Return what identifies a function when its definition runs again."""
    name = getattr(function, "__qualname__", None)
    return (getattr(function, "__module__", None), name) if name else (function,)


class Actuators(KnobTable):
    """The knobs and functions that a trainer has registered so far.

    ``connections``: set by an adapter that knows them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.connections: Connections | None = None
        self._functions: dict[str, list[Any]] = {}
        self._earlier: list[Any] = []

    def functions(self, verb: str) -> tuple[Any, ...]:
        """Return what is registered for an operation, in order."""
        return tuple(self._functions.get(verb, ()))

    def add_function(self, verb: str, function: Any) -> None:
        """Register a function; it replaces one of its name from before :meth:`attach_again`."""
        known = self._functions.get(verb, [])
        stale = [f for f in known if f in self._earlier and _name(f) == _name(function)]
        self._functions[verb] = [*(f for f in known if f not in stale), function]

    def attach_again(self) -> None:
        """Note that the script, or a cell of a notebook, may run again from its beginning."""
        self._earlier = [f for functions in self._functions.values() for f in functions]
