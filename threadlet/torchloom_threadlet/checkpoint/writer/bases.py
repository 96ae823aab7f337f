"""The full checkpoint of which this process keeps the weights, for the small ones after it."""

from torchloom_threadlet.checkpoint.writer.storing import Part


class Bases:
    """Keeps the models of the newest full checkpoint that was stored in a tier."""

    def __init__(self) -> None:
        self._folder = ""
        self._tensors: dict[tuple[str, tuple[int, ...]], bytes] = {}

    def small(self, part: Part) -> Part:
        """Return a part small if it has a base, else as it is."""
        if not part.order.base:
            return part
        # It needs numpy.
        from torchloom_threadlet.checkpoint.writer.small_part import SmallPart

        is_kept = part.order.base == self._folder
        return SmallPart(part, self._tensors if is_kept else {})

    def take(self, part: Part) -> None:
        """Keep the models of a part that was stored, if it is a full one."""
        if part.base:
            return
        self._tensors.clear()
        self._tensors = {
            (piece.name, piece.offsets): bytes(part.tensor(piece))
            for piece in part.shard().pieces
            if piece.name.startswith("model")
        }
        self._folder = part.folder
