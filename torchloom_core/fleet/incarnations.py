"""The lives that workers had before their present one; the fleet state asks who may begin."""

_KEPT = 16


class Lives:
    """The last lives of every worker, and which of them were seen to end.

    A life is known by its incarnation alone: the clock that numbers them may go back, so a
    smaller number says nothing of which came first.
    """

    def __init__(self) -> None:
        self._past: dict[int, dict[int, bool]] = {}

    def note(self, row: int, incarnation: int, *, ended: bool) -> None:
        """Remember a life of the worker in ``row``, and whether it was seen to end."""
        past = self._past.setdefault(row, {})
        past[incarnation] = past.pop(incarnation, False) or ended
        if len(past) > _KEPT:
            del past[next(iter(past))]

    def may_follow(self, row: int, incarnation: int, present: int, *, vacant: bool) -> bool:
        """Say whether a life may take the place of the ``present`` one.

        None that was seen to end may. Where the place is ``vacant``, the present life being over
        or silent, any other may; else only one that is later and was not there before.
        """
        past = self._past.get(row, {})
        if incarnation == present or past.get(incarnation, False):
            return False
        return vacant or (incarnation > present and incarnation not in past)
