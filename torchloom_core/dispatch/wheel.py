"""Who drives from web pages: one seat at a time, by a lease that is over unless it is renewed."""

from torchloom_core.clock import SECOND_NS
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

    def refusal(self, request: Request, now_ns: int) -> str:
        """Return why a request is not granted, or nothing.

        Anyone may throw the kill switch, and say something for the record.
        """
        holder = self.holder(now_ns)
        match request.want:
            case TakeWheel() | LeaveWheel() if not request.seat:
                return "the wheel is for web pages: need a seat"
            case TakeWheel(force=force):
                taken = holder not in ("", request.seat) and not force
                return f"{holder} has the wheel" if taken else ""
            case StopActions() | LeaveWheel() | Remark():
                return ""
        if not request.seat or holder == request.seat:
            return ""
        return f"{request.seat} does not have the wheel: {holder or 'nobody'} has"

    def turn(self, request: Request, now_ns: int) -> list[Output]:
        """Give the wheel to a seat, or take it back."""
        before, seat = self.holder(now_ns), request.seat
        if isinstance(request.want, TakeWheel):
            self._seat, self._until_ns = seat, now_ns + round(request.want.lease_s * SECOND_NS)
            text = "has the wheel" + (f", taken from {before}" if before not in ("", seat) else "")
            changed = before != seat
        else:
            changed = before == seat
            if changed:
                self._seat, self._until_ns = "", 0
            text = "does not have the wheel any more" if changed else "did not have the wheel"
        told: list[Output] = [Notice(kind="wheel", text=f"{seat} {text}")] if changed else []
        return [*told, Reply(request=request.id, ok=True, text=f"{seat} {text}")]

    def lapse(self, now_ns: int) -> list[Output]:
        """Tell of a lease that is over."""
        if not self._seat or self.holder(now_ns):
            return []
        seat, self._seat = self._seat, ""
        return [Notice(kind="wheel", text=f"{seat} did not renew its lease of the wheel")]
