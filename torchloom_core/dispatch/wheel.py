"""Who drives from web pages: one seat at a time, by a lease that is over unless it is renewed."""

from torchloom_core.clock import SECOND_NS
from torchloom_core.wire import notices
from torchloom_core.wire.events import Notice, Output, Reply
from torchloom_core.wire.requests import LeaveWheel, Remark, Request, StopActions, TakeWheel


class Wheel:
    """Refuses what other seats ask for; who asks without a seat, by command line, needs no wheel.

    It is not kept over a restart of the Weaver: whoever drives takes it again.
    """

    def __init__(self) -> None:
        self._seat = ""
        self._until_ns = 0

    def holder(self, now_ns: int) -> str:
        """Return the seat that drives, or nothing."""
        return self._seat if now_ns < self._until_ns else ""

    def until_ns(self, now_ns: int) -> int:
        """Return when its lease is over; 0 where none drives."""
        return self._until_ns if self.holder(now_ns) else 0

    def answer(self, request: Request, now_ns: int) -> list[Output] | None:
        """Answer what a seat may not ask for, and what is of the wheel itself; None of all else.

        Anyone may throw the kill switch, and say something for the record.
        """
        holder = self.holder(now_ns)
        match request.want:
            case TakeWheel() | LeaveWheel() if not request.seat:
                return _refused(request, "the wheel is for web pages: need a seat")
            case TakeWheel(force=force) as want:
                if holder not in ("", request.seat) and not force:
                    return _refused(request, f"{holder} has the wheel")
                return self._give(request, want.lease_s, now_ns)
            case LeaveWheel():
                return self._take_back(request, now_ns)
            case Remark(text=text):
                told = notices.of_remark(request.who, text)
                return [told, Reply(request=request.id, ok=True, text="it is on record")]
            case StopActions():
                return None
        if not request.seat or holder == request.seat:
            return None
        who = f"{request.seat} does not have the wheel"
        return _refused(request, f"{who}: {holder or 'nobody'} has")

    def _give(self, request: Request, lease_s: float, now_ns: int) -> list[Output]:
        before, seat = self.holder(now_ns), request.seat
        self._seat, self._until_ns = seat, now_ns + round(lease_s * SECOND_NS)
        taken = f", taken from {before}" if before not in ("", seat) else ""
        return _done(request, f"{seat} has the wheel{taken}", is_news=before != seat)

    def _take_back(self, request: Request, now_ns: int) -> list[Output]:
        if self.holder(now_ns) != request.seat:
            return _done(request, f"{request.seat} did not have the wheel", is_news=False)
        self._seat, self._until_ns = "", 0
        return _done(request, f"{request.seat} does not have the wheel any more", is_news=True)

    def lapse(self, now_ns: int) -> list[Output]:
        """Tell of a lease that is over."""
        if not self._seat or self.holder(now_ns):
            return []
        seat, self._seat = self._seat, ""
        return [Notice(kind="wheel", text=f"{seat} did not renew its lease of the wheel")]


def _refused(request: Request, why: str) -> list[Output]:
    return [Reply(request=request.id, ok=False, text=why)]


def _done(request: Request, text: str, *, is_news: bool) -> list[Output]:
    told: list[Output] = [Notice(kind="wheel", text=text)] if is_news else []
    return [*told, Reply(request=request.id, ok=True, text=text)]
