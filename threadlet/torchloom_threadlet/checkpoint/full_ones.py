"""Which checkpoints are full ones, to which the small ones between them have differences."""

EVERY = 24


class FullOnes:
    """Counts the checkpoints of a tier, the same on all ranks.

    Attributes
    ----------
    is_needed : bool
        Whether this rank asks for a full one: the last was not saved, or there was none.
    is_asked : bool
        Whether any rank did, as all know.
    """

    def __init__(self) -> None:
        self.is_needed = self.is_asked = True
        self._base, self._left = "", 0

    def base_of(self, folder: str) -> str:
        """Return the base of the checkpoint that begins now; "" if it is to be a full one."""
        if not self._left or self.is_asked:
            self._base, self._left = folder, EVERY - 1
            self.is_needed = False
            return ""
        self._left -= 1
        return self._base
