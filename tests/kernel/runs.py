"""Build a small run around a real kernel and drive it by hand."""

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from torchloom_core.config.loading import parse
from torchloom_core.config.schema import Config
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.live.dispatch.policy_guard import Guard, RecordedGuard
from torchloom_core.live.kernel.kernel import Kernel
from torchloom_core.live.kernel.plugins.host import ActivePlugins, ActivePolicy
from torchloom_core.plugin import FleetView, PolicyNeed
from torchloom_core.wire.actions import Action
from torchloom_core.wire.codec import encode
from torchloom_core.wire.commands import Ack, Command
from torchloom_core.wire.decisions import Issue, Output, Proposal, Reply
from torchloom_core.wire.events import Input, Recovered, Tick
from torchloom_core.wire.links import ProbeAddress
from torchloom_core.wire.messages import Exit, Hello, KnobSpec, Telemetry
from torchloom_core.wire.requests import Propose, Request
from torchloom_core.wire.steering import LighthouseView

START_NS = 1_700_000_000 * SECOND_NS
LR = KnobSpec(name="lr", kind="float", low=0.0, high=1.0)

T = TypeVar("T")


class NoOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For plugins that have none."""


class ScriptedPolicy:
    """A policy that proposes the given proposals once."""

    name = "scripted"
    Options = NoOptions

    def __init__(self, *needs: PolicyNeed) -> None:
        self.needs = needs
        self.next: list[Proposal] = []

    def on_tick(self, view: FleetView) -> list[Proposal]:
        proposals, self.next = self.next, []
        return proposals


class Calls:
    """A policy from a function of the view."""

    name = "calls"
    Options = NoOptions

    def __init__(
        self, function: Callable[[FleetView], Any], needs: Sequence[PolicyNeed] = ()
    ) -> None:
        self.needs = needs
        self._function = function

    def on_tick(self, view: FleetView) -> Any:
        return self._function(view)


def active(name: str, policy: Any, mode: str = "act") -> ActivePolicy:
    return ActivePolicy(name, policy, mode)  # type: ignore[arg-type]


def make_kernel(
    policies: Iterable[ActivePolicy] = (),
    config: Config | str = "",
    predictors: dict[str, Any] | None = None,
    guard: Guard | None = None,
) -> Kernel:
    settings = parse(config) if isinstance(config, str) else config
    plugins = ActivePlugins(tuple(policies), predictors or {})
    return Kernel(settings, plugins, guard or RecordedGuard())


def hello(worker: str, **changes: Any) -> Hello:
    group, _, rank = worker.rpartition("-")
    fields: dict[str, Any] = {
        "run": "run",
        "worker": worker,
        "incarnation": 1,
        "group": group,
        "rank": int(rank),
        "node": f"node-{group}",
        "knobs": (LR,),
        "values": {"lr": 0.1},
        "actuators": ("drain", "join", "checkpoint", "cut", "terminate"),
    }
    return Hello(**{**fields, **changes})


def node_agent(node: str, roles: str = "trainer rollout", **changes: Any) -> Hello:
    fields = {
        "group": f"node-agent-{node}",
        "role": "node-agent",
        "node": node,
        "state": "training",
        "labels": {"roles": roles},
        "actuators": ("start_role",),
    }
    return hello(f"node-agent-{node}-0", **{**fields, **changes})


def telemetry(worker: str, metrics: dict[str, float] | None = None, **changes: Any) -> Telemetry:
    metrics = metrics or {}
    fields: dict[str, Any] = {
        "run": "run",
        "worker": worker,
        "incarnation": 1,
        "seq": 0,
        "state": "training",
        "step": 1,
        "progress_age_s": 0.0,
        "metrics": tuple(metrics),
        "ts_ns": struct.pack("<q", 0) if metrics else b"",
        "values": struct.pack(f"<{len(metrics)}d", *metrics.values()),
    }
    return Telemetry(**{**fields, **changes})


def ack(command: Command, status: str, **changes: Any) -> Ack:
    fields: dict[str, Any] = {
        "command": command.id,
        "run": command.run,
        "worker": command.worker,
        "incarnation": command.incarnation,
        "epoch": command.epoch,
        "status": status,
    }
    return Ack(**{**fields, **changes})


def proposal(action: Action, gain: float = 100.0, **changes: Any) -> Proposal:
    return Proposal(action=action, reason="for the test", gain_gpu_s=gain, **changes)


class Run:
    """A kernel, the time, and all its outputs."""

    def __init__(self, kernel: Kernel, epoch: int = 1, now_ns: int = START_NS) -> None:
        self.kernel = kernel
        self.now_ns = now_ns
        self.outputs: list[Output] = []
        self.stored: dict[str, bytes] = {}
        self.feed(Recovered(epoch=epoch))

    def feed(self, message: Telemetry | Input, after_s: float = 0.0) -> list[Output]:
        self.now_ns += round(after_s * SECOND_NS)
        outputs = list(self.kernel.step(message, self.now_ns))
        self.outputs += outputs
        for key, entry in self.kernel.changes().items():
            if entry is None:
                del self.stored[key]
            else:
                self.stored[key] = encode(entry)
        return outputs

    def tick(self, after_s: float = 1.0) -> list[Output]:
        return self.feed(Tick(), after_s)

    def ask(self, action: Action, sure: bool = True) -> list[Output]:
        return self.feed(Request(id="r", want=Propose(action=action, sure=sure)))

    def want(self, want: Any, sent_as: str = "") -> Reply:
        return only(Reply, self.feed(Request(id="r", want=want, sent_as=sent_as)))

    def report(self, worker: str, **changes: Any) -> list[Output]:
        """Take telemetry and let a tick write it."""
        self.feed(telemetry(worker, **changes))
        return self.tick()

    def ack(self, command: Command, status: str = "applied", **changes: Any) -> list[Output]:
        return self.feed(ack(command, status, **changes))

    def exit(self, worker: str, expected: bool = False, incarnation: int = 1) -> list[Output]:
        status = 0 if expected else -9
        message = Exit(
            run="run", worker=worker, incarnation=incarnation, status=status, expected=expected
        )
        return self.feed(message)

    def all(self, kind: type[T]) -> list[T]:
        return of(kind, self.outputs)

    def commands(self) -> list[Command]:
        return [issue.command for issue in self.all(Issue)]


def in_quorum(worker: str, quorum_id: int, **changes: Any) -> Hello:
    """The hello of a worker whose group is in a quorum."""
    replica_id = f"{worker.rpartition('-')[0]}:uuid"
    return hello(worker, **{"replica_id": replica_id, "quorum_id": quorum_id, **changes})


def lighthouse_view(**changes: Any) -> LighthouseView:
    """The view of a lighthouse with three groups in quorum 7."""
    fields: dict[str, Any] = {
        "run": "run",
        "incarnation": 1,
        "quorum_id": 7,
        "members": ("a:uuid", "b:uuid", "c:uuid"),
    }
    return LighthouseView(**{**fields, **changes})


PROBE_TOKEN = "0123456789abcdef" * 4


def probe_address(worker: str, token: str = PROBE_TOKEN) -> ProbeAddress:
    """Return the probe address of the worker's sidecar."""
    return ProbeAddress(host=f"{worker}.example", port=4000, token=token)


def can_be_probed(worker: str, **changes: Any) -> Hello:
    """The hello of a worker whose sidecar accepts probes."""
    return hello(
        worker,
        **{"actuators": ("drain", "probe"), "probe_address": probe_address(worker), **changes},
    )


def three_groups(kernel: Kernel, standby: bool = True) -> Run:
    """Return a run of groups a, b and c of one worker each, and a standby s."""
    run = Run(kernel)
    for group in "abc":
        run.feed(hello(f"{group}-0"))
    if standby:
        run.feed(hello("s-0", state="standby"))
    return run


def of(kind: type[T], outputs: Iterable[Any]) -> list[T]:
    return [output for output in outputs if isinstance(output, kind)]


def only(kind: type[T], outputs: Iterable[Any]) -> T:
    (output,) = of(kind, outputs)
    return output
