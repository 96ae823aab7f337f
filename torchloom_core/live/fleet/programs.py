"""The programs that are split over workers, by role, as their rendezvous report them."""

from msgspec.structs import replace

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.programs import SplitProgram
from torchloom_core.wire.decisions import Notice, Output
from torchloom_core.wire.generations import Outlook
from torchloom_core.wire.programs import GenerationSeen, ProgramSeen, ProgramStatus

_MOST = 50
"""Generations of a role that are kept."""

_NOTHING = Outlook(phase="unknown")


class Programs:
    """What is known of each role's program; ``of`` maps a role to it."""

    def __init__(self) -> None:
        self.of: dict[str, SplitProgram] = {}
        self._stopped_ns: dict[str, int] = {}

    def take(self, seen: ProgramSeen, ts_ns: int) -> list[Output]:
        """Take a report; return notices of a new generation and of a lost rendezvous."""
        role, outlook = seen.role, seen.outlook
        before = self.of.get(role) or SplitProgram(role, _NOTHING, since_ns=ts_ns)
        if outlook is None:
            self.of[role] = before._replace(is_reachable=False)
            if not before.is_reachable or before.outlook is _NOTHING:
                return []
            return [Notice(kind="rendezvous", text=f"{role}: the rendezvous cannot be reached")]
        if seen.is_update:
            known = before.outlook
            outlook = replace(outlook, assignment=known.assignment, program=known.program)
        offered_ns = before.offered_ns if before.offer else ts_ns
        after = before._replace(
            outlook=outlook, is_reachable=True, offered_ns=offered_ns if outlook.offer else 0
        )
        notices: list[Output] = []
        if began := self._began(before, outlook, ts_ns):
            after = after._replace(generations=(*after.generations, began)[-_MOST:])
            notices.append(Notice(kind="generation", text=f"{role}: {text_of(began)}"))
        if outlook.phase == "stopping":
            self._stopped_ns.setdefault(role, ts_ns)
        else:
            self._stopped_ns.pop(role, None)
        self.of[role] = after
        return notices

    def _began(self, before: SplitProgram, outlook: Outlook, ts_ns: int) -> GenerationSeen | None:
        known, now = before.outlook.assignment, outlook.assignment
        if now is None or (known is not None and known.generation == now.generation):
            return None
        stopped_ns = self._stopped_ns.get(before.role, ts_ns)
        return GenerationSeen(
            number=now.generation,
            began_ns=ts_ns,
            why=now.why,
            cause=outlook.cause,
            took_s=round((ts_ns - stopped_ns) / SECOND_NS, 3),
            committed=outlook.committed,
        )

    def status(self) -> tuple[ProgramStatus, ...]:
        """Return all programs, for a status."""
        return tuple(
            ProgramStatus(
                role=one.role,
                reachable=one.is_reachable,
                outlook=one.outlook,
                generations=one.generations,
            )
            for one in self.of.values()
        )


def text_of(began: GenerationSeen) -> str:
    """Return the beginning of a generation in one line."""
    after = f", after step {began.committed}" if began.committed >= 0 else ""
    cause = f"; {began.cause}" if began.cause else ""
    return f"generation {began.number}: {began.why or 'first'}{after}{cause}"
