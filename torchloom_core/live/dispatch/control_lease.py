"""The control lease: the one web session that may act; it expires unless renewed."""

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.wire.decisions import Notice, Output, Reply
from torchloom_core.wire.requests import Annotate, ReleaseControl, Request, StopActions, TakeControl


class ControlLease:
    """Refuses requests of other sessions, none by command line; ends with the Weaver."""

    def __init__(self) -> None:
        self._session = ""
        self._until_ns = 0

    def holder(self, now_ns: int) -> str:
        """Return the session that has the lease, or an empty string."""
        return self._session if now_ns < self._until_ns else ""

    def until_ns(self, now_ns: int) -> int:
        """Return when the lease expires; 0 if no session has it."""
        return self._until_ns if self.holder(now_ns) else 0

    def answer(self, request: Request, now_ns: int) -> list[Output] | None:
        """Answer requests about the lease and refused ones; None for others, as the kill switch."""
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
                notice = Notice(kind="annotation", text=f"{request.requester}: {text}")
                return [notice, Reply(request=request.id, ok=True, text="added to the record")]
            case StopActions():
                return None
        if not request.session or holder == request.session:
            return None
        text = f"{request.session} does not have control, {holder or 'no session'} has"
        return _refused(request, text)

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
        """Return a notice if the lease has just expired."""
        if not self._session or self.holder(now_ns):
            return []
        session, self._session = self._session, ""
        return [Notice(kind="control", text=f"the control lease of {session} expired")]


def _refused(request: Request, why: str) -> list[Output]:
    return [Reply(request=request.id, ok=False, text=why)]


def _done(request: Request, text: str, *, is_news: bool) -> list[Output]:
    announced: list[Output] = [Notice(kind="control", text=text)] if is_news else []
    return [*announced, Reply(request=request.id, ok=True, text=text)]
