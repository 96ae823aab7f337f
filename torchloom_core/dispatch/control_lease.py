"""The control lease: which web session may act; it ends unless it is renewed."""

from torchloom_core.clock import SECOND_NS
from torchloom_core.wire import notices
from torchloom_core.wire.events import Notice, Output, Reply
from torchloom_core.wire.requests import Annotate, ReleaseControl, Request, StopActions, TakeControl


class ControlLease:
    """Refuse requests of other sessions; a request by command line needs no control lease.

    It is not kept over a restart of the Weaver: its holder takes it again.
    """

    def __init__(self) -> None:
        self._session = ""
        self._until_ns = 0

    def holder(self, now_ns: int) -> str:
        """Return the session that holds the lease, or nothing."""
        return self._session if now_ns < self._until_ns else ""

    def until_ns(self, now_ns: int) -> int:
        """Return when its lease is over; 0 where no session holds it."""
        return self._until_ns if self.holder(now_ns) else 0

    def answer(self, request: Request, now_ns: int) -> list[Output] | None:
        """Answer requests that are refused, or that concern the lease; None for all others.

        Any session may throw the kill switch, and annotate the record.
        """
        holder = self.holder(now_ns)
        match request.want:
            case TakeControl() | ReleaseControl() if not request.session:
                return _refused(request, "control is for web pages: need a session")
            case TakeControl(force=force) as want:
                if holder not in ("", request.session) and not force:
                    return _refused(request, f"{holder} has control")
                return self._give(request, want.lease_s, now_ns)
            case ReleaseControl():
                return self._take_back(request, now_ns)
            case Annotate(text=text):
                told = notices.of_annotation(request.requester, text)
                return [told, Reply(request=request.id, ok=True, text="it is on record")]
            case StopActions():
                return None
        if not request.session or holder == request.session:
            return None
        who = f"{request.session} does not have control"
        return _refused(request, f"{who}: {holder or 'nobody'} has")

    def _give(self, request: Request, lease_s: float, now_ns: int) -> list[Output]:
        before, session = self.holder(now_ns), request.session
        self._session, self._until_ns = session, now_ns + round(lease_s * SECOND_NS)
        taken = f", taken from {before}" if before not in ("", session) else ""
        return _done(request, f"{session} has control{taken}", is_news=before != session)

    def _take_back(self, request: Request, now_ns: int) -> list[Output]:
        if self.holder(now_ns) != request.session:
            return _done(request, f"{request.session} did not have control", is_news=False)
        self._session, self._until_ns = "", 0
        return _done(request, f"{request.session} does not have control any more", is_news=True)

    def lapse(self, now_ns: int) -> list[Output]:
        """Tell of a lease that is over."""
        if not self._session or self.holder(now_ns):
            return []
        session, self._session = self._session, ""
        return [Notice(kind="control", text=f"{session} did not renew its control lease")]


def _refused(request: Request, why: str) -> list[Output]:
    return [Reply(request=request.id, ok=False, text=why)]


def _done(request: Request, text: str, *, is_news: bool) -> list[Output]:
    told: list[Output] = [Notice(kind="control", text=text)] if is_news else []
    return [*told, Reply(request=request.id, ok=True, text=text)]
