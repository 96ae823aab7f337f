"""A torchLoom collector; enable it by its name in ``TORCHLOOM_COLLECTORS``."""

import os


class Example:
    """Measure the load of the host."""

    def collect(self) -> dict[str, float]:
        """Return metric name to value, now; called once per heartbeat, and may block."""
        return {"example_load": os.getloadavg()[0]}


def find_example(pid: int, node: str) -> Example | None:
    """Return the collector of a worker, or None where there is nothing to measure.

    Parameters
    ----------
    pid : int
        Process of the trainer.
    node : str
        Name of its node.
    """
    return Example() if hasattr(os, "getloadavg") else None
