"""The settings of all layers' optimizers, and the clipping of gradients, as run-fenced knobs."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from torchloom_threadlet.layers.layer import Layer
from torchloom_threadlet.pipeline.layers import Program
from torchloom_threadlet.pipeline.user_code import of_the_user
from torchloom_threadlet.pipeline.worker import Worker
from torchloom_threadlet.training.gradients import CLIP_NORM_DOC
from torchloom_threadlet.training.optimizer_knobs import Setting, settings


def register_knobs(loom: Any, program: Program, worker: Worker) -> None:
    """Register ``clip_norm``, and each setting once for all layers.

    A layer that comes later from another worker has them in its optimizer's state.
    """
    with of_the_user():
        weight = nn.Parameter(torch.zeros(1, dtype=torch.float32, device="cpu"))
        optimizer = program.optimizer([weight])
        scheduler = program.scheduler(optimizer) if program.scheduler is not None else None
    for setting in settings(optimizer, scheduler):
        _OfAllLayers(setting, lambda: worker.trained).register(loom)

    def set_clip_norm(value: float) -> None:
        worker.clip_norm = value

    loom.knob(
        "clip_norm",
        lambda: worker.clip_norm,
        set_clip_norm,
        low=0.0,
        fence="run",
        doc=CLIP_NORM_DOC,
    )


class _OfAllLayers:
    """One setting of the optimizers of all layers that this worker holds.

    Parameters
    ----------
    usual : Setting
        That of a new optimizer: what a worker without layers reports.
    layers : callable
        Returns the layers.
    """

    def __init__(self, usual: Setting, layers: Callable[[], Iterable[Layer]]) -> None:
        self._usual, self._layers = usual, layers

    def register(self, loom: Any) -> None:
        usual = self._usual
        loom.knob(
            usual.name,
            lambda: (self._of_layers() or [usual])[0].get(),
            self._set,
            low=usual.low,
            high=usual.high,
            fence="run",
            check=self._check,
            doc=f"{usual.doc}, of all layers",
        )

    def _of_layers(self) -> list[Setting]:
        found = (layer.settings.get(self._usual.name) for layer in self._layers())
        return [setting for setting in found if setting is not None]

    def _set(self, value: float) -> None:
        for setting in self._of_layers():
            setting.set(value)

    def _check(self, values: Mapping[str, Any]) -> None:
        for setting in self._of_layers():
            if setting.check is not None:
                setting.check(values[self._usual.name])
