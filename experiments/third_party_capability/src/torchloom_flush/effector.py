"""Mark in a folder which flush was the last, for programs that copy checkpoints elsewhere."""

from pathlib import Path

import msgspec
from torchloom_core.plugin import Delivery, Outcome, Subscription


class FlushMarker:
    """Writes the file ``flushed`` into ``folder``: all checkpoints before it are complete."""

    name = "flush_marker"
    subscriptions = (Subscription(Outcome, actions=("flush",)),)

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[effectors.flush_marker]``.

        Attributes
        ----------
        folder : str
            Existing folder of the checkpoints.
        """

        folder: str

    def __init__(self, options: Options) -> None:
        self._path = Path(options.folder) / "flushed"

    async def send(self, delivery: Delivery) -> str | None:
        """Replace the marker; a delivery that is repeated writes the same."""
        if delivery.event.result != "done":
            return None
        new = self._path.with_suffix(".new")
        new.write_text(f"{delivery.run} {delivery.id} {delivery.event.detail}\n")
        new.replace(self._path)
        return f"wrote {self._path}"
