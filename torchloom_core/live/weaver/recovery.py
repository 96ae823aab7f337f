"""The last Weaver's state: as it was stored, brought up to the end of its trajectory.

The trajectory is written before the state is stored, and the state before commands are sent. If
a Weaver is killed in between, its trajectory is ahead of its state, and nothing of the difference
was sent. The daemon calls this when it starts.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from torchloom_core.floor.errors import StateError
from torchloom_core.live.fleet.cordons import Cordon, Cordons
from torchloom_core.live.fleet.desired_knobs import key_of
from torchloom_core.live.kernel.actions.kinds import kind_of
from torchloom_core.live.trajectory.earlier_names import renamed
from torchloom_core.live.trajectory.layout import META, epoch_folder, epochs
from torchloom_core.live.trajectory.reader import EpochRecord, Recorded
from torchloom_core.live.weaver.outbox import AT_KEY, At
from torchloom_core.wire.capabilities import record_decoder
from torchloom_core.wire.codec import UNREADABLE, encode
from torchloom_core.wire.commands import FINAL_STATUSES, Command
from torchloom_core.wire.decisions import (
    CommandStatus,
    CordonOver,
    InputFailed,
    Issue,
    KnobDesired,
    Outcome,
    Output,
    Verdict,
    Withdrawal,
)
from torchloom_core.wire.events import Answered, Control, Fault, Launched, Recovered
from torchloom_core.wire.links import Link
from torchloom_core.wire.plans import (
    ACTIONS_STOPPED,
    WITHDRAWN,
    Flight,
    Granted,
    Plan,
    Watch,
    called_off,
)
from torchloom_core.wire.requests import Request, ResumeActions, StopActions
from torchloom_core.wire.suspensions import SuspensionChanged
from torchloom_core.wire.suspensions import key_of as suspension_key

_T = TypeVar("_T", bound=msgspec.Struct)

_output_decoder: msgspec.json.Decoder[Output] = record_decoder(Output)


class Inheritance:
    """The state of the last Weaver, updated from its trajectory; StateError if it is damaged."""

    def __init__(self, entries: Mapping[str, bytes], place: str) -> None:
        self._entries = entries
        self._place = place
        self._plans = self._table("plan", Plan, "verdict")
        self._flights = {f.command.id: f for f in self._entries_of("flight", Flight)}
        self._desired = {key_of(d): d for d in self._entries_of("knob", KnobDesired)}
        cordons = self._table("cordon", Cordon, "node").values()
        self._cordons = Cordons()
        self._cordons.restore(
            [cordon.node for cordon in cordons],
            {c.node: c.until_ns for c in cordons if c.until_ns is not None},
        )
        suspensions = self._entries_of("suspension", SuspensionChanged)
        self._suspensions = {suspension_key(one): one for one in suspensions}
        self._stopped = "actions.stopped" in entries
        self._issued: dict[str, Command] = {}
        self._granted: dict[str, Verdict] = {}
        self._missed: dict[str, CommandStatus] = {}
        self._last: Recorded | None = None

    def follow(self, root: Path, epoch: int) -> None:
        """Apply what the trajectory of ``epoch`` under ``root`` has after the stored state.

        Then apply the records of later Weavers that ended before they had taken over: they
        continued from that state and sent nothing. StateError if the files are damaged.
        """
        folder = epoch_folder(root, epoch)
        if not (folder / META).exists():
            return
        at = self._entries.get(AT_KEY)
        seq = 0 if at is None else self._decode(at, AT_KEY, At).seq
        for recorded in EpochRecord(folder).events_after(seq):
            self._last = recorded
            self._take(recorded)
        for later in (epoch_folder(root, other) for other in epochs(root) if other > epoch):
            if (later / META).exists():
                for recorded in EpochRecord(later).events_after(0):
                    self._take(recorded)

    def recovered(self, epoch: int) -> Recovered:
        """Return the first input of the kernel of ``epoch``."""
        unsent = [command for command in self._issued.values() if command.id not in self._flights]
        return Recovered(
            epoch=epoch,
            control=Control(
                stopped=self._stopped,
                flights=tuple(self._flights.values()),
                plans=tuple(map(self._with_missed, self._plans.values())),
                grants=tuple(self._entries_of("grant", Granted)),
                desired=tuple(d for d in self._desired.values() if d.value is not None),
                cordoned=tuple(sorted(self._cordons.nodes)),
                cordoned_until_ns=dict(sorted(self._cordons.until_ns.items())),
                faults=tuple(self._entries_of("fault", Fault)),
                # None from the trajectory: no reply was sent, so a request may come again.
                answers=tuple(self._entries_of("answer", Answered)),
                watches=tuple(self._entries_of("watch", Watch)),
                links=tuple(self._entries_of("link", Link)),
                launches=tuple(self._entries_of("launch", Launched)),
                suspensions=tuple(self._suspensions.values()),
            ),
            unsent=tuple(unsent),
            unstarted=tuple(v for v in self._granted.values() if v.proposal not in self._plans),
        )

    @property
    def poison(self) -> Recorded | None:
        """The input at which the last Weaver's own code failed, if that ended it."""
        if self._last is None or not self._last.outputs:
            return None
        failed = isinstance(_output_decoder.decode(self._last.outputs[-1]), InputFailed)
        return self._last if failed else None

    def _take(self, recorded: Recorded) -> None:
        match recorded.message:
            case Request(want=StopActions()):
                self._stopped = True
                self._plans = {v: called_off(p, ACTIONS_STOPPED) for v, p in self._plans.items()}
            case Request(want=ResumeActions()):
                self._stopped = False
        for body in recorded.outputs:
            match _output_decoder.decode(body):
                case Issue(command=command):
                    self._issued[command.id] = command
                case CommandStatus() as status:
                    self._take_status(status)
                case Withdrawal(command=command_id) if command_id in self._flights:
                    self._set_status(command_id, WITHDRAWN)
                case Verdict(granted=True) as verdict:
                    self._granted[verdict.proposal] = verdict
                case Outcome() as outcome:
                    self._plans.pop(outcome.verdict, None)
                    self._granted.pop(outcome.verdict, None)
                    if outcome.result == "done":
                        action = outcome.action
                        kind_of(action).at_once(action, self._cordons, recorded.ts_recv_ns)
                case KnobDesired() as desired:
                    self._desired[key_of(desired)] = desired
                case SuspensionChanged(state="over") as over:
                    self._suspensions.pop(suspension_key(over), None)
                case SuspensionChanged() as suspension:
                    self._suspensions[suspension_key(suspension)] = suspension
                case CordonOver(node=node):
                    self._cordons.lift(node)

    def _take_status(self, new: CommandStatus) -> None:
        if new.status in FINAL_STATUSES:
            self._issued.pop(new.command, None)
            if self._flights.pop(new.command, None) is not None and new.status != "applied":
                self._missed[new.command] = new
        elif new.command in self._flights:
            self._set_status(new.command, new.status)

    def _set_status(self, command_id: str, status: str) -> None:
        flight = self._flights[command_id]
        self._flights[command_id] = msgspec.structs.replace(flight, status=status)

    def _with_missed(self, plan: Plan) -> Plan:
        """Return the plan with the failed commands that are missing in the stored plan."""
        news = {
            command_id: f"{last.status}: {last.detail}" if last.detail else last.status
            for command_id, last in self._missed.items()
            if last.cause == plan.verdict and command_id not in plan.missed
        }
        if not news:
            return plan
        return msgspec.structs.replace(
            plan, missed={**plan.missed, **news}, missed_count=plan.missed_count + len(news)
        )

    def _table(self, name: str, cls: type[_T], key: str) -> dict[str, _T]:
        return {getattr(entry, key): entry for entry in self._entries_of(name, cls)}

    def _entries_of(self, name: str, cls: type[_T]) -> list[_T]:
        return [
            self._decode(data, key, cls)
            for key, data in self._entries.items()
            if key.startswith(f"{name}.")
        ]

    def _decode(self, data: bytes, key: str, cls: type[_T]) -> _T:
        try:
            found: _T = record_decoder(cls).decode(data)
        except UNREADABLE as error:
            try:  # a Weaver of an earlier version stored it
                found = record_decoder(cls).decode(renamed(data))
            except UNREADABLE:
                raise StateError(f"{self._place}, key {key}: cannot be read: {error}") from None
        return found


def same_input(message: Any, poison: Recorded) -> bool:
    """Return whether the message is the one at which the last Weaver failed."""
    return type(message) is type(poison.message) and encode(message) == encode(poison.message)
