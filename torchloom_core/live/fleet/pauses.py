"""The pauses of a run: one of the whole run, or one a role."""

from collections.abc import Set

from torchloom_core.live.fleet.run_pause import PAUSE_OVER, RunPause
from torchloom_core.live.fleet.state import FleetState
from torchloom_core.wire.commands import Ack
from torchloom_core.wire.decisions import Notice, Output
from torchloom_core.wire.messages import Exit, Hello, Note
from torchloom_core.wire.operations import SUSPENDED


class Pauses:
    """The pause of the whole run, and those of roles; never both at once.

    Attributes
    ----------
    of : dict of str to RunPause
        By role; "": the whole run.
    """

    def __init__(self, fleet: FleetState, stale_after_s: float) -> None:
        self._fleet = fleet
        self._stale_after_s = stale_after_s
        self._reported = False
        self.of = {"": RunPause(fleet, stale_after_s)}

    def for_role(self, role: str) -> RunPause:
        """Return the pause of a role, of the whole run for ""."""
        if role not in self.of:
            self.of[role] = RunPause(self._fleet, self._stale_after_s, role)
        return self.of[role]

    @property
    def verdict(self) -> str:
        """The verdict of a pause in force, or ""."""
        return next((one.verdict for one in self.of.values() if one.verdict), "")

    @property
    def in_force(self) -> list[str]:
        """The roles with a pause in force; "": the whole run."""
        return [role for role, one in self.of.items() if one.verdict]

    @property
    def makings(self) -> list[str]:
        """The verdicts of the pauses that are beginning."""
        return [one.making for one in self.of.values() if one.making]

    @property
    def going_on(self) -> bool:
        """Whether a pause is beginning or in force."""
        return any(one.going_on for one in self.of.values())

    def paused(self, roles: Set[str]) -> RunPause | None:
        """Return a pause in force that concerns one of the roles, or of any if there is none."""
        for role, one in self.of.items():
            if one.verdict and (not role or not roles or role in roles):
                return one
        return None

    def applied(self, ack: Ack, verdict: str, now_ns: int) -> None:
        """Record that a worker has paused by the pause of ``verdict``."""
        for one in self.of.values():
            one.applied(ack, verdict, now_ns)

    def check(self, now_ns: int, worker: str = "") -> list[Output]:
        """End the pauses of which a worker, or any for "", no longer pauses or is unreachable."""
        return [output for one in self.of.values() for output in one.check(now_ns, worker)]

    def end(self, why: str) -> list[Output]:
        """End all pauses in force, with a notice if there is a reason ``why``."""
        return [output for one in self.of.values() for output in one.end(why)]

    def react(self, message: Exit | Note) -> list[Output]:
        """End the pause of a worker that reports that it no longer pauses."""
        return [output for one in self.of.values() for output in one.react(message)]

    def stray(self, hello: Hello) -> list[Output]:
        """Report once a worker that is still paused by a pause of an earlier Weaver."""
        is_suspended = SUSPENDED in hello.actuators
        if hello.state != "paused" or is_suspended or self.going_on or self._reported:
            return []
        self._reported = True
        text = f"{hello.worker} is still in a pause that has ended: it continues by itself"
        return [Notice(kind=PAUSE_OVER, text=text, worker=hello.worker)]
