"""A trace as it was known at an earlier time."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.derived import DerivedBundle
from torchloom_core.lab.trace.bundle.schema import ActionTaken, Component, Event

if TYPE_CHECKING:
    import pyarrow as pa


class EarlierPart(DerivedBundle):
    """The same bundle up to ``end_ns``, without anything that became known later."""

    def __init__(self, bundle: Bundle, end_ns: int) -> None:
        super().__init__(bundle, replace(bundle.manifest, end_ns=end_ns))
        self._end_ns = end_ns

    def topology(self) -> tuple[Component, ...]:
        """Return the components that started by then; later removals are unknown."""
        return tuple(
            replace(part, until_ns=self._known(part.until_ns))
            for part in self._bundle.topology()
            if part.from_ns is None or part.from_ns < self._end_ns
        )

    def events(self) -> tuple[Event, ...]:
        """Return the events known by then."""
        return tuple(
            replace(event, t_resolved=self._known(event.t_resolved))
            for event in self._bundle.events()
            if event.t_avail < self._end_ns
        )

    def actions(self) -> tuple[ActionTaken, ...]:
        """Return the actions known by then."""
        return tuple(
            replace(action, t_end=self._known(action.t_end))
            for action in self._bundle.actions()
            if action.t_avail < self._end_ns
        )

    def telemetry(
        self,
        start_ns: int | None = None,
        end_ns: int | None = None,
        metrics: Sequence[str] | None = None,
    ) -> Iterator["pa.Table"]:
        """Yield the telemetry that had arrived by then."""
        until_ns = self._end_ns if end_ns is None else min(end_ns, self._end_ns)
        return self._bundle.telemetry(start_ns, until_ns, metrics)

    def _known(self, ts_ns: int | None) -> int | None:
        return None if ts_ns is None or ts_ns >= self._end_ns else ts_ns
