"""The digits trainer with knobs that must not differ, which journals each step and each setting.

``width`` and ``wire`` shape an allreduce of its own ahead of that of the gradients: where they
differ between two ranks, gloo aborts both.
"""

import hashlib
import json
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torchft import ProcessGroupGloo

from experiments.fence_soak.script import KNOBS, Knob
from torchloom_threadlet import demo_trainer
from torchloom_threadlet.torchft import adapter

PROCESS_GROUP_TIMEOUT_S = 5.0
DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16}

values: dict[str, Any] = {knob.name: knob.start for knob in KNOBS if knob.start is not None}


def note(event: str, **fields: object) -> None:
    """Add a line to the journal of this life."""
    with Path(os.environ["CHAOS_JOURNAL"]).open("a") as journal:
        journal.write(json.dumps({"t": time.time(), "event": event, **fields}) + "\n")


class ShapedGloo(ProcessGroupGloo):  # type: ignore[misc]  # torchft has no types
    """A process group whose collectives take the shape that the knobs say."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__(timeout=timedelta(seconds=PROCESS_GROUP_TIMEOUT_S))

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        """Reduce a tensor of the knobs' shape, then what was asked for; ballots go alone."""
        if tensors[0].dtype != torch.int64 and self.size() > 1:
            shaped = torch.ones(values["width"], dtype=DTYPES[values["wire"]])
            super().allreduce([shaped], opts).wait()
        return super().allreduce(tensors, opts)


class WatchedLoom(adapter.TorchftLoom):
    """Journals what each step was made with, and each knob as it is set."""

    _optimizer: Any = None
    _committed = False

    def manage(self, manager: Any, optimizer: Any = None) -> None:
        """Register the knobs, all of them run-fenced."""
        super().manage(manager)
        self._optimizer = optimizer
        for knob in KNOBS:
            self._register(knob)
        should_commit = manager.should_commit

        def committed(*arguments: Any, **named: Any) -> Any:
            self._committed = False
            self._committed = should_commit(*arguments, **named)
            return self._committed

        manager.should_commit = committed

    def _register(self, knob: Knob) -> None:
        def put(value: Any) -> None:
            self._put(knob.name, value)
            note("set", knob=knob.name, value=value, step=self._manager.current_step())

        self.knob(
            knob.name,
            lambda: self._used()[knob.name],
            put,
            kind=knob.kind,
            low=knob.low,
            high=knob.high,
            choices=knob.choices,
            fence="run",
        )

    def _put(self, name: str, value: Any) -> None:
        if name != "lr":
            values[name] = value
            return
        for group in self._optimizer.param_groups:
            group["lr"] = value

    def _used(self) -> dict[str, Any]:
        return {"lr": float(self._optimizer.param_groups[0]["lr"]), **values}

    def step(self, step: int | None = None, **metrics: Any) -> bool:
        """Journal the step before anything is changed after it."""
        note(
            "step",
            step=self._manager.current_step(),
            quorum=self._manager._quorum_id,
            committed=self._committed,
            values=self._used(),
            weights=self._digest(),
        )
        return super().step(step, **metrics)

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                digest.update(parameter.detach().numpy().tobytes())
        return digest.hexdigest()[:16]


if __name__ == "__main__":
    adapter.TorchftLoom = WatchedLoom  # type: ignore[misc]
    demo_trainer.ProcessGroupGloo = ShapedGloo
    demo_trainer.main()
