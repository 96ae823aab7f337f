"""A bundle with the files of another bundle, but other rows."""

from torchloom_core.interface.arrays import Ints
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import Manifest


class DerivedBundle(Bundle):
    """A bundle that shares metrics, measured components and reports with ``bundle``.

    They are not read again; a subclass overrides what differs.
    """

    def __init__(self, bundle: Bundle, manifest: Manifest | None = None) -> None:
        super().__init__(bundle.path, manifest or bundle.manifest)
        self._bundle = bundle

    @property
    def metrics(self) -> tuple[str, ...]:
        """Those of the original bundle."""
        return self._bundle.metrics

    @property
    def measured(self) -> tuple[str, ...]:
        """Those of the original bundle."""
        return self._bundle.measured

    def reports(self, until_ns: int) -> tuple[Ints, Ints]:
        """Those of the original bundle, up to the end of this one."""
        return self._bundle.reports(min(until_ns, self.manifest.end_ns))
