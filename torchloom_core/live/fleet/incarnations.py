"""The earlier incarnations of workers, to decide which one may follow; part of the fleet state."""

_MAX_PAST = 16


class Incarnations:
    """The last incarnations of every worker, and whether each is known to have ended.

    Their numbers come from a clock that may go back, so they do not give the order.
    """

    def __init__(self) -> None:
        self._past: dict[int, dict[int, bool]] = {}

    def note(self, row: int, incarnation: int, *, ended: bool) -> None:
        """Record an incarnation of the worker in ``row``, and whether it has ended."""
        past = self._past.setdefault(row, {})
        past[incarnation] = past.pop(incarnation, False) or ended
        if len(past) > _MAX_PAST:
            del past[next(iter(past))]

    def forget(self, row: int) -> None:
        """Forget the worker in ``row``."""
        self._past.pop(row, None)

    def may_follow(self, row: int, incarnation: int, present: int, *, vacant: bool) -> bool:
        """Return whether an incarnation may replace the ``present`` one.

        One that has ended may not. If the row is ``vacant``, as the present one ended or is
        unreachable, any other may; else only one with a higher number that is new.
        """
        past = self._past.get(row, {})
        if incarnation == present or past.get(incarnation, False):
            return False
        return vacant or (incarnation > present and incarnation not in past)
