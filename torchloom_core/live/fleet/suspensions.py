"""What is suspended: the whole run, or roles, until their workers train again; kernel state."""

from collections.abc import Iterable, Set

import msgspec

from torchloom_core.floor.persistent_table import PersistentTable
from torchloom_core.live.fleet.state import FleetState
from torchloom_core.wire.decisions import Notice, Output
from torchloom_core.wire.messages import Exit
from torchloom_core.wire.operations import SUSPENDED, Depth, Freeze, Operation, Resume, Thaw
from torchloom_core.wire.requests import PERSON
from torchloom_core.wire.suspensions import SuspensionChanged, key_of

SUSPENSION_OVER = "suspension_over"
"""Kind of the notice of a suspension that ended, and was not resumed."""

_THAW, _FREEZE, _LOAD = "thaw", "freeze", "load"
"""What the sidecar of a stopped trainer can do, that of a running one, and a parked trainer."""


class Suspensions:
    """The suspensions, one a role, or one of the whole run.

    A suspended worker waits until it gets a ``Resume``, whatever happens to Weaver, broker and
    sidecar. So these are desired states: :meth:`upkeep` sends what workers lack.

    Attributes
    ----------
    table : PersistentTable of SuspensionChanged
        By ``all`` or ``role.<role>``; none of them is over.
    """

    def __init__(self, fleet: FleetState) -> None:
        self._fleet = fleet
        self.table: PersistentTable[SuspensionChanged] = PersistentTable("suspension")
        self._identities: tuple[SuspensionChanged | None, frozenset[tuple[str, int]]] = (
            None,
            frozenset(),
        )

    def restore(self, suspensions: Iterable[SuspensionChanged]) -> None:
        """Restore the suspensions of an earlier Weaver."""
        self.table.update((key_of(one), one) for one in suspensions)

    def of(self, roles: Set[str]) -> SuspensionChanged | None:
        """Return one that concerns one of the roles, or any if there is none."""
        for one in self.table.values():
            if not one.role or not roles or one.role in roles:
                return one
        return None

    def by_role(self) -> dict[str, str]:
        """Return for each suspended role the policy that suspended it."""
        found: dict[str, str] = {}
        for one in self.table.values():
            if one.state == "suspended":
                found |= dict.fromkeys([one.role] if one.role else self._fleet.roles, one.by)
        return found

    def refusal(self, roles: Set[str]) -> str:
        """Return that one of the roles is suspended, or an empty string."""
        one = self.of(roles)
        if one is None:
            return ""
        what = f"role {one.role}" if one.role else "the run"
        if one.state == "resuming":
            return f"{what} is being resumed"
        return f"{what} is suspended ({one.depth}), resume it first"

    def waiting(self, role: str) -> list[int]:
        """Return the rows of a role's workers, or of all for "", that wait to be resumed."""
        hello = self._fleet.hello
        return [
            row
            for row, one in enumerate(hello)
            if SUSPENDED in one.actuators
            and role in ("", one.role)
            and not self._fleet.is_over(row)
        ]

    def frozen(self, rows: Iterable[int]) -> list[int]:
        """Return those of the rows whose processes are stopped."""
        return [row for row in rows if _THAW in self._fleet.hello[row].actuators]

    def parked(self, rows: Iterable[int]) -> list[int]:
        """Return those of the rows that have to load their state."""
        return [row for row in rows if _LOAD in self._fleet.hello[row].actuators]

    def stay(self, role: str) -> list[Output]:
        """Record that what was being resumed stays suspended."""
        found: list[Output] = []
        for one in list(self.table.values()):
            if role in ("", one.role) and one.state == "resuming":
                found += self._put(msgspec.structs.replace(one, state="suspended"))
        return found

    def begin(
        self,
        role: str,
        depth: Depth,
        plan: tuple[str, str],
        step: int,
        rows: Iterable[int],
        now_ns: int,
    ) -> list[Output]:
        """Record that the workers of these rows are suspended; ``plan``: its verdict and policy."""
        verdict, by = plan
        hellos = [self._fleet.hello[row] for row in rows]
        incarnations = tuple((hello.worker, hello.incarnation) for hello in hellos)
        return self._put(
            SuspensionChanged(
                role=role,
                depth=depth,
                state="suspended",
                step=step,
                since_ns=now_ns,
                verdict=verdict,
                by=by,
                workers=incarnations,
            )
        )

    def end(self, role: str, why: str = "") -> list[Output]:
        """Record that all suspensions of a role, or all for "", are being resumed."""
        found: list[Output] = []
        for one in list(self.table.values()):
            if role in ("", one.role) and one.state == "suspended":
                found += self._put(msgspec.structs.replace(one, state="resuming", why=why))
        return found

    def react(self, message: Exit) -> list[Output]:
        """Resume the others if a stopped worker has ended, which had its state."""
        identity = message.worker, message.incarnation
        found: list[Output] = []
        for one in list(self.table.values()):
            if one.depth != "frozen" or one.state != "suspended":
                continue
            if identity in self._identities_of(one):
                why = f"{message.worker} has ended"
                found += self._put(msgspec.structs.replace(one, state="resuming", why=why))
                found.append(_notice(one, f"is resumed: {why}"))
        return found

    def _identities_of(self, one: SuspensionChanged) -> frozenset[tuple[str, int]]:
        if self._identities[0] is not one:
            self._identities = one, frozenset(one.workers)
        return self._identities[1]

    def upkeep(
        self, busy: Set[str], on_the_way: Set[str], now_ns: int
    ) -> tuple[list[Output], list[tuple[int, Operation]]]:
        """Return what has changed, and the operations that workers, by row, lack.

        Parameters
        ----------
        busy : set of str
            Roles that a plan suspends or resumes at this moment; "": all.
        on_the_way : set of str
            Workers with such an operation in flight.
        """
        outputs: list[Output] = []
        lacking: list[tuple[int, Operation]] = []
        if "" in busy:
            return outputs, lacking
        outputs += self._adopt(busy, now_ns)
        for one in list(self.table.values()):
            if one.role in busy or (busy and not one.role):
                continue
            rows = self.waiting(one.role)
            due = [r for r in rows if self._fleet.hello[r].worker not in on_the_way]
            if one.state == "resuming":
                lacking += [(row, Thaw()) for row in self.frozen(due)]
                lacking += [(row, Resume()) for row in due if row not in self.parked(due)]
            elif one.depth == "frozen":
                able = [r for r in due if _FREEZE in self._fleet.hello[r].actuators]
                lacking += [(row, Freeze()) for row in able]
            outputs += self._over(one, rows)
        return outputs, lacking

    def _adopt(self, busy: Set[str], now_ns: int) -> list[Output]:
        """Take over workers that wait, and of which this Weaver knows nothing."""
        rows = self.waiting("")
        found: list[Output] = []
        for role in sorted({self._fleet.hello[row].role for row in rows} - busy):
            if self.of({role}) is None:
                of_role = self.waiting(role)
                depth: Depth = "parked" if self.parked(of_role) else "frozen"
                found += self.begin(role, depth, ("", PERSON), -1, of_role, now_ns)
        return found

    def _over(self, one: SuspensionChanged, waiting: list[int]) -> list[Output]:
        """End a suspension whose workers train again, or have ended."""
        if waiting:
            return []
        fleet = self._fleet
        rows = [r for r, of in enumerate(fleet.hello) if one.role in ("", of.role)]
        trains = any(fleet.state[r] == "training" for r in rows)
        ended = all(map(fleet.is_over, rows))
        if one.depth != "frozen":
            over, why = trains, ""
        else:
            over = trains or (ended and bool(rows))
            why = "" if trains else "its workers have ended"
        if not over:
            return []
        del self.table[key_of(one)]
        why = one.why or why
        outputs: list[Output] = [msgspec.structs.replace(one, state="over", why=why)]
        if trains and one.state == "suspended":
            outputs.append(_notice(one, "trains again: its workers were started"))
        elif not trains:
            outputs.append(_notice(one, f"is no longer suspended: {why}"))
        return outputs

    def _put(self, one: SuspensionChanged) -> list[Output]:
        self.table[key_of(one)] = one
        return [one]


def _notice(one: SuspensionChanged, text: str) -> Notice:
    what = f"role {one.role}" if one.role else "the run"
    return Notice(kind=SUSPENSION_OVER, text=f"{what} {text}")
