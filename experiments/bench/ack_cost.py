"""What an ack costs the Weaver with many commands in flight, against one command in flight."""

import time
from statistics import median

import fleet
from figure import Figure, medians
from msgspec.structs import replace

from torchloom_core.floor.clock import SECOND_NS, ManualClock
from torchloom_core.live.kernel.kernel import Kernel
from torchloom_core.live.weaver.courier import Courier
from torchloom_core.live.weaver.deadline_guard import DeadlineGuard
from torchloom_core.live.weaver.outbox import Outbox
from torchloom_core.wire.actions import ChangeKnob
from torchloom_core.wire.commands import Ack, Command
from torchloom_core.wire.decisions import Issue, Output
from torchloom_core.wire.events import Recovered
from torchloom_core.wire.messages import KnobSpec
from torchloom_core.wire.requests import Propose, Request

_ACKS_A_REPEAT = 300
_NO_LIMIT_S = 3600.0
_START_NS = 1_700_000_000 * SECOND_NS
_LR = KnobSpec(name="lr", kind="float", low=0.0, high=1.0)


async def measure(repeats: int, *, tiny: bool) -> list[Figure]:
    """Take acks one by one, each up to the changed state as bytes, in turns."""
    workers = fleet.names(500 if tiny else 10_000)
    bench = _Bench(workers)
    bench.turn()
    rows = [bench.turn() for _ in range(repeats)]
    return [
        Figure(
            "ack",
            f"an ack with {len(workers):,} commands in flight / with one in flight, "
            f"of {len(workers):,} workers",
            2,
            "at most",
            [row["many_us"] / row["one_us"] for row in rows],
            medians(rows),
        )
    ]


class _Bench:
    """A kernel whose workers all have a knob, and the outbox behind it; nothing is sent."""

    def __init__(self, workers: list[str]) -> None:
        settings = fleet.config()
        self._kernel = Kernel(settings, fleet.plugins(settings), DeadlineGuard(_NO_LIMIT_S))
        clock = ManualClock(_START_NS)
        courier = Courier(None, clock)  # type: ignore[arg-type]
        self._outbox = Outbox(None, clock, 1, courier, lambda ids: None)  # type: ignore[arg-type]
        self._workers = workers
        self._turns = 0
        self._step(Recovered(epoch=1))
        for worker in workers:
            self._step(replace(fleet.hello(worker), knobs=(_LR,), values={"lr": 0.5}))

    def turn(self) -> dict[str, float]:
        """Return the median cost of an ack in microseconds, with one and with all in flight."""
        one = []
        for number in range(_ACKS_A_REPEAT):
            worker = self._workers[number % len(self._workers)]
            (command,) = self._set(worker)
            one.append(self._ack_us(command))
        commands = self._set(None)
        many = [self._ack_us(command) for command in commands[:_ACKS_A_REPEAT]]
        for command in commands[_ACKS_A_REPEAT:]:
            self._ack_us(command)
        return {"one_us": median(one), "many_us": median(many)}

    def _set(self, worker: str | None) -> list[Command]:
        self._turns += 1
        value = 0.1 + 0.8 * (self._turns % 1_000) / 1_000
        action = ChangeKnob(knob="lr", value=value, worker=worker)
        outputs = self._step(Request(id=f"r{self._turns}", want=Propose(action=action)))
        return [output.command for output in outputs if isinstance(output, Issue)]

    def _ack_us(self, command: Command) -> float:
        ack = Ack(
            command=command.id,
            run=command.run,
            worker=command.worker,
            incarnation=command.incarnation,
            epoch=command.epoch,
            status="applied",
        )
        start = time.perf_counter()
        self._step(ack)
        return 1e6 * (time.perf_counter() - start)

    def _step(self, message: Recovered | Request | Ack | object) -> list[Output]:
        outputs = list(self._kernel.step(message, _START_NS))  # type: ignore[arg-type]
        self._outbox.post(outputs, self._kernel.changes(), self._kernel.seq)
        return outputs
