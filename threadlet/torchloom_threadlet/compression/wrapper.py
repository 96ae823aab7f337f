"""A torchft process group around another one, which survives an abort."""

from datetime import timedelta

from torchft.process_group import ProcessGroup, ProcessGroupWrapper

_TIMEOUT = timedelta(seconds=60)


class Wrapper(ProcessGroupWrapper):  # type: ignore[misc]
    """Passes all calls on to ``pg``; torchft's own wrapper drops it on an abort."""

    def __init__(self, pg: ProcessGroup) -> None:
        super().__init__(timeout=getattr(pg, "_timeout", None) or _TIMEOUT, pg=pg)

    def abort(self, errored: bool = True) -> None:
        """Abort the wrapped process group; it can be reconfigured."""
        self._pg.abort()

    def shutdown(self) -> None:
        """Shut the wrapped process group down."""
        self._pg.shutdown()

    def errored(self) -> Exception | None:
        """Return the wrapped process group's error."""
        return self._pg.errored()  # type: ignore[no-any-return]

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout, of the wrapped process group as well."""
        super().set_timeout(timeout)
        self._pg.set_timeout(timeout)
