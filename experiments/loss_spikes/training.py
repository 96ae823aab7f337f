"""A small language model trained with injected faults, and a Weaver that watches it."""

import copy
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.allreduce.model import passages
from experiments.compression.training import corpus
from torchloom_core.config.loading import parse
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.live.dispatch.policy_guard import RecordedGuard
from torchloom_core.live.kernel.kernel import Kernel
from torchloom_core.live.kernel.plugins.host import ActivePlugins, ActivePolicy
from torchloom_core.wire.commands import Ack
from torchloom_core.wire.decisions import Issue, Outcome, Proposal, Proposed
from torchloom_core.wire.events import Recovered, Tick
from torchloom_core.wire.messages import Hello, KnobSpec, Telemetry
from torchloom_core.wire.operations import FencedChange, Rewind, SetKnobs
from torchloom_policies.loss_guard import LossGuardPolicy
from torchloom_threadlet.training.gradients import Gradients

CONTEXT = 8
BATCH = 128
STEPS = 600
FAULT_AT = 300
STEPS_A_TICK = 2
STEP_S = 0.5
CHECKPOINT_STEPS = 100
TRY_STEPS = 20
WARM_UP = 20
BAD_BATCHES, BAD_STEPS = 60, 10
"""How long a bad stretch of data is, and a rate too high."""
START_NS = 1_700_000_000 * SECOND_NS
CONFIG = "[costs]\ncheckpoint_s = 1.0\n"

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 3e-3),
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
}
RATES = {"adamw": 60.0, "sgd": 40.0}
"""How many times the rate is too high, where that is the fault."""
NO_FAULT = "none"
FAULTS = ("bad batch", "bad stretch", "high rate", "bit flip")


class Model(nn.Module):
    """Predicts a character from the ``CONTEXT`` before it (Bengio et al., 2003)."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, 12)
        self.layers = nn.Sequential(
            nn.Linear(12 * CONTEXT, 64), nn.ReLU(), nn.Linear(64, characters)
        )

    def loss(self, text: Tensor) -> Tensor:
        """Return the mean loss over ``text``, of shape (batch, CONTEXT + 1)."""
        hidden = self.characters(text[:, :-1]).flatten(1)
        return functional.cross_entropy(self.layers(hidden), text[:, -1])


@dataclass
class Ran:
    """One training.

    Attributes
    ----------
    curve : list of float
        Held-out loss, nats a character, after each ``TRY_STEPS`` steps.
    done : list of str
        The actions carried out, with the step.
    proposed : int
        Number of the guard's proposals.
    """

    curve: list[float] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    proposed: int = 0


class Hasty(LossGuardPolicy):
    """Sees a spike as the guard does, and does the one step it has at once, at any price."""

    def _priced(self, *arguments: Any) -> Proposal:
        proposal = super()._priced(*arguments)
        return msgspec.structs.replace(proposal, gain_gpu_s=1e6, cost_gpu_s=0.0, confidence=1.0)


class Weaver:
    """The kernel with the policy and one worker, which carries out commands at once."""

    def __init__(self, options: dict[str, Any], training: "Training") -> None:
        kind = Hasty if len(options.get("steps", ())) == 1 else LossGuardPolicy
        policy = kind(kind.Options(**options))
        plugins = ActivePlugins((ActivePolicy("loss_guard", policy, "act"),), {})
        self._kernel = Kernel(parse(CONFIG), plugins, RecordedGuard())
        self._training = training
        self._now_ns = START_NS
        self._feed(Recovered(epoch=1))
        self._feed(
            Hello(
                run="run",
                worker="a-0",
                incarnation=1,
                group="a",
                rank=0,
                node="n",
                knobs=(
                    KnobSpec(name="clip_norm", kind="float", low=0.0, fence="run"),
                    KnobSpec(name="skip_updates", kind="int", low=0, fence="run", used_up=True),
                ),
                values={"clip_norm": 0.0, "skip_updates": 0},
                actuators=("fenced_change", "rewind"),
            )
        )

    def look(self, step: int, metrics: dict[str, float]) -> None:
        """Show the run to the Weaver, and carry out its commands."""
        self._now_ns += round(STEPS_A_TICK * STEP_S * SECOND_NS)
        reported = {name: value for name, value in metrics.items() if not math.isnan(value)}
        self._feed(
            Telemetry(
                run="run",
                worker="a-0",
                incarnation=1,
                seq=0,
                state="training",
                step=step,
                progress_age_s=0.0,
                metrics=tuple(reported),
                ts_ns=struct.pack("<q", self._now_ns) if reported else b"",
                values=struct.pack(f"<{len(reported)}d", *reported.values()),
            )
        )
        self._feed(Tick())

    def _feed(self, message: Any) -> None:
        for output in list(self._kernel.step(message, self._now_ns)):
            ran = self._training.ran
            if isinstance(output, Proposed):
                ran.proposed += 1
            if isinstance(output, Outcome):
                ran.done.append(f"{output.result}: {output.detail}")
            if isinstance(output, Issue) and isinstance(output.command.do, FencedChange):
                command = output.command
                self._training.obey(command.do.do)
                self._feed(
                    Ack(
                        command=command.id,
                        run="run",
                        worker="a-0",
                        incarnation=1,
                        epoch=command.epoch,
                        status="applied",
                        step=self._training.step,
                    )
                )


class Training:
    """One run. Nothing goes wrong in it until :meth:`go_wrong`."""

    def __init__(self, kind: str, seed: int) -> None:
        self.kind = kind
        self.text, held_out, self.characters = corpus()
        torch.manual_seed(seed)
        self.model = Model(self.characters)
        self.optimizer = OPTIMIZERS[kind](self.model.parameters())
        self.gradients = Gradients(self.optimizer, step=self._number)
        self.rate, self.too_high = self.optimizer.param_groups[0]["lr"], RATES[kind]
        self.fault, self.seed, self.at = NO_FAULT, seed, -1
        self.time = self.step = self.position = self.saved_at = 0
        self.ran = Ran()
        self.held_out = passages(held_out, CONTEXT, 2048, _random(0))
        self.seen: list[tuple[int, dict[str, float]]] = []
        self.weaver: Weaver | None = None
        self.checkpoint: dict[str, Any] = {}

    def go_wrong(self, fault: str, options: dict[str, Any] | None) -> "Training":
        """Return a copy with a fault that begins now, guarded if there are ``options``."""
        other = Training(self.kind, self.seed)
        other.model.load_state_dict(self.model.state_dict())
        other.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        other.time, other.step, other.position = self.time, self.step, self.position
        other.saved_at, other.checkpoint = self.saved_at, self.checkpoint
        other.ran.curve = list(self.ran.curve)
        other.fault, other.at = fault, self.time
        if options is not None:
            other.weaver = Weaver(options, other)
            for step, metrics in self.seen:
                other.weaver.look(step, metrics)
        return other

    def run(self, until: int) -> Ran:
        """Go on until so many steps are done, those that were taken back or left out counted."""
        while self.time < until:
            if self.step % CHECKPOINT_STEPS == 0:
                self._save()
            loss = self._train()
            self.time += 1
            if self.time % TRY_STEPS == 0:
                with torch.no_grad():
                    self.ran.curve.append(self.model.loss(self.held_out).item())
            if self.time % STEPS_A_TICK == 0:
                metrics = {
                    "loss": loss,
                    "grad_norm": self.gradients.grad_norm.item(),
                    "update_norm": self.gradients.update_norm.item(),
                    "unsaved_work_s": (self.time - self.saved_at) * STEP_S,
                }
                self.seen.append((self.step, metrics))
                if self.weaver is not None:
                    self.weaver.look(self.step, metrics)
        return self.ran

    def obey(self, operation: Any) -> None:
        """Train as a trainer would."""
        match operation:
            case SetKnobs(values=values):
                if "clip_norm" in values:
                    self.gradients.clip_norm = values["clip_norm"]
                if "skip_updates" in values:
                    self.gradients.skip_next(values["skip_updates"])
            case Rewind(skip=skip):
                saved = copy.deepcopy(self.checkpoint)
                self.model.load_state_dict(saved["model"])
                self.optimizer.load_state_dict(saved["optimizer"])
                self.step = saved["step"]
                self.position = saved["position"] + skip

    def _number(self) -> int:
        return self.step

    def _save(self) -> None:
        self.saved_at = self.time
        self.checkpoint = copy.deepcopy(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "step": self.step,
                "position": self.position,
            }
        )

    def _train(self) -> float:
        batch = passages(self.text, CONTEXT, BATCH, _random(self.seed << 32 | self.position))
        lasts = {"bad batch": 1, "bad stretch": BAD_BATCHES}.get(self.fault, 0)
        if self.at <= self.position < self.at + lasts:
            batch = torch.randint(self.characters, batch.shape, generator=_random(self.position))
        high = self.fault == "high rate" and self.at <= self.time < self.at + BAD_STEPS
        warm = min(1.0, (self.step + 1) / WARM_UP)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * warm * (self.too_high if high else 1.0)
        self.optimizer.zero_grad()
        loss = self.model.loss(batch)
        loss.backward()
        if self.fault == "bit flip" and self.time == self.at:
            self._flip()
        self.optimizer.step()
        self.step += 1
        self.position += 1
        return float(loss.detach())

    def _flip(self) -> None:
        """Flip the highest bit of one exponent, which is not set: times 2 to the 128th."""
        flat = self.model.layers[2].weight.grad.view(-1)
        place = torch.randint(len(flat), (), generator=_random(self.seed << 32 | self.time))
        flat.view(torch.int32)[place] ^= 1 << 30


def _random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def trial(
    optimizer: str, seed: int, arms: dict[str, dict[str, Any] | None]
) -> dict[tuple[str, str], Ran]:
    """Train once undisturbed, and with each fault in each arm: the guard's options, or None."""
    torch.set_num_threads(1)
    training = Training(optimizer, seed)
    training.run(FAULT_AT + seed * 37 % CHECKPOINT_STEPS)
    ran = {(NO_FAULT, ""): training.go_wrong(NO_FAULT, None).run(STEPS)}
    for fault in FAULTS:
        for arm, options in arms.items():
            ran[fault, arm] = training.go_wrong(fault, options).run(STEPS)
    return ran


def undisturbed(optimizer: str, seed: int, steps: int) -> Ran:
    """Train for long without a fault, under the guard."""
    torch.set_num_threads(1)
    return Training(optimizer, seed).go_wrong(NO_FAULT, {}).run(steps)
