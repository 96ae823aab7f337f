"""Probe: the sidecar measures the link to another worker's sidecar."""

from torchloom_core.wire.links import Measured
from torchloom_core.wire.operations import Probe
from torchloom_threadlet.capability import Sidecar, SidecarPart


class ProbePart(SidecarPart[Probe]):
    """Sends to the other sidecar's probe address."""

    operation = Probe

    def is_offered(self, sidecar: Sidecar) -> bool:
        """Return whether this sidecar accepts probes, too."""
        return sidecar.probe_address is not None

    def refusal(self, operation: Probe, sidecar: Sidecar) -> str:
        """Refuse to measure where no probes are accepted."""
        if sidecar.probe_address is not None:
            return ""
        return "this worker takes no probes: TORCHLOOM_LINK_ADDRESS is not set or not usable"

    async def do(self, operation: Probe, sidecar: Sidecar) -> Measured:
        """Measure, within about four seconds."""
        from torchloom_threadlet.sidecar.probing.sender import measure  # asyncio, not in a trainer

        return await measure(operation)


PARTS = (ProbePart(),)
