"""A bundle that is another one, but for some of its rows."""

from torchloom_core.plugin.arrays import Ints
from torchloom_core.trace.bundle.bundle import Bundle
from torchloom_core.trace.bundle.schema import Manifest


class DerivedBundle(Bundle):
    """A bundle with the metrics and the measured components of ``bundle``, and its reports.

    Nobody has to look for them again; what else differs a subclass says.
    """

    def __init__(self, bundle: Bundle, manifest: Manifest | None = None) -> None:
        super().__init__(bundle.path, manifest or bundle.manifest)
        self._bundle = bundle

    @property
    def metrics(self) -> tuple[str, ...]:
        """Those of the bundle."""
        return self._bundle.metrics

    @property
    def measured(self) -> tuple[str, ...]:
        """Those of the bundle."""
        return self._bundle.measured

    def reports(self, until_ns: int) -> tuple[Ints, Ints]:
        """Those of the bundle, up to the end of this one."""
        return self._bundle.reports(min(until_ns, self.manifest.end_ns))
