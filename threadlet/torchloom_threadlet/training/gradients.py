"""Clips, adds noise to and measures gradients between their reduction and the update.

A hook before the optimizer's step, where gradients are final, or after the closure that computes
them, and one after the step. For the built-in knobs ``clip_norm``, ``gradient_noise`` and
``skip_updates``, and for the figures ``grad_norm`` and ``update_norm`` of each step::

    gradients = Gradients(optimizer, step=manager.current_step, clip_norm=1.0)
    ...
    loom.step(loss=loss, **gradients.figures())
"""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from torchloom_threadlet.training.closures import after_gradients
from torchloom_threadlet.training.optimizer_knobs import managed, unwrapped
from torchloom_threadlet.training.switchable import SwitchableOptimizer

CLIP_NORM_DOC = "largest global norm of the gradients; 0: no clipping"


class Gradients:
    """Clips, adds noise to, measures or skips the updates of an optimizer.

    With the same settings and the same gradients all ranks have the same gradients afterwards, to
    the bit. It never waits for a GPU.

    ``optimizer``: any, also torchft's wrapper. Parameters may be DTensors (FSDP2); norms are then
    over all shards, which takes a collective of the group.
    ``step``: returns the number of the step, the same on all ranks: the noise depends on it.
    ``clip_norm``: the largest global norm of the gradients; 0 does not clip.
    ``noise``: standard deviation of Gaussian noise on each gradient, after clipping; 0 adds none.
    ``measure_update``: whether to measure ``update_norm``, which takes a copy of the weights.
    ``skips``: how many of the next updates are skipped.
    ``grad_norm``: global norm of the last step's gradients before clipping, 0-d. NaN before the
    first step.
    ``known_norm``: that of the gradients to come, if a framework that clips has computed it; the
    next step takes it.
    ``update_norm``: global norm of the last step's change of the weights, 0-d.
    """

    def __init__(
        self,
        optimizer: Any,
        *,
        step: Callable[[], int],
        clip_norm: float = 0.0,
        noise: float = 0.0,
        seed: int = 0,
        measure_update: bool = True,
    ) -> None:
        optimizer = unwrapped(optimizer)
        self._step, self._seed = step, seed
        self.clip_norm, self.noise = clip_norm, noise
        self._measure_update = measure_update
        self.skips = 0
        self._before: list[Tensor] = []
        self._measured: list[Tensor] = []
        self._is_evaluated = self._skips_this = False
        self.known_norm: Tensor | None = None
        self.grad_norm = self.update_norm = _on_host(math.nan)
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)

    @property
    def clip_norm(self) -> float:
        """The largest global norm of the gradients; 0 does not clip."""
        return self._clip_norm

    @clip_norm.setter
    def clip_norm(self, value: float) -> None:
        self._clip_norm = _not_negative("clip_norm", value)

    @property
    def noise(self) -> float:
        """Standard deviation of the noise on each gradient."""
        return self._noise

    @noise.setter
    def noise(self, value: float) -> None:
        self._noise = _not_negative("noise", value)

    def skip_next(self, updates: int = 1) -> None:
        """Skip this many updates: neither weights nor the optimizer's state change."""
        self.skips = int(_not_negative("updates", updates))

    def figures(self) -> dict[str, Tensor]:
        """Return the measurements of the last step, by their names in telemetry."""
        measured = {"grad_norm": self.grad_norm}
        return measured | {"update_norm": self.update_norm} if self._measure_update else measured

    def register(self, loom: Any, *, clips: bool = True) -> None:
        """Register the knobs ``clip_norm``, ``gradient_noise`` and ``skip_updates``.

        ``clips``: False leaves ``clip_norm`` to a framework that clips by itself.
        """
        for name, attribute, doc in (
            ("clip_norm", "clip_norm", CLIP_NORM_DOC),
            ("gradient_noise", "noise", "standard deviation of noise on the gradients"),
        ):
            if name == "clip_norm" and not clips:
                continue
            get, put = partial(getattr, self, attribute), partial(setattr, self, attribute)
            loom.knob(name, get, put, low=0.0, fence="run", doc=doc)
        loom.knob(
            "skip_updates",
            lambda: self.skips,
            self.skip_next,
            kind="int",
            low=0,
            fence="run",
            used_up=True,
            doc="how many of the next updates are skipped",
        )

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """Act on the gradients now, or where a closure is passed, after it has computed them."""
        self._is_evaluated = False
        return after_gradients(args, kwargs, lambda: self._act(optimizer))

    @torch.no_grad()
    def _act(self, optimizer: Any) -> None:
        parameters = [
            parameter
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        known, self.known_norm = self.known_norm, None
        if known is None:
            norm = _whole(get_total_norm([parameter.grad for parameter in parameters]))
            norm = norm / _scale(optimizer, norm.device)
        else:
            norm = _whole(known)
        is_first, self._is_evaluated = not self._is_evaluated, True
        if is_first:  # of a step whose closure may be called several times
            self.grad_norm, self._measured = norm, []
            self._skips_this = self.skips > 0
            self.skips -= self._skips_this
        if self._skips_this:
            for parameter in parameters:
                parameter.grad = None  # an optimizer skips a parameter without a gradient
            return
        if self._clip_norm:
            clip_grads_with_norm_(parameters, self._clip_norm, norm)
        if self._noise:
            self._add_noise(optimizer, parameters)
        if is_first and self._measure_update:
            self._keep_weights(parameters)

    def _keep_weights(self, parameters: list[Tensor]) -> None:
        self._measured = parameters
        if not _alike(self._before, parameters):
            self._before = [torch.empty_like(parameter) for parameter in parameters]
        # DTensors have no foreach copy.
        torch._foreach_copy_(
            [_local(copy) for copy in self._before], [_local(one) for one in parameters]
        )

    @torch.no_grad()
    def _after_step(self, optimizer: Any, args: object, kwargs: object) -> None:
        if not self._measured:
            self.update_norm = torch.zeros_like(self.grad_norm)
            return
        torch._foreach_sub_(self._before, self._measured)
        self.update_norm = _whole(get_total_norm(self._before))
        self._measured = []

    def _add_noise(self, optimizer: Any, parameters: Iterable[Tensor]) -> None:
        step, generators = self._step(), {}
        for parameter in parameters:
            assert parameter.grad is not None
            local, shard = _local(parameter.grad), _shard(parameter.grad)
            place = (local.device, shard)
            if place not in generators:
                generators[place] = torch.Generator(local.device).manual_seed(
                    (self._seed * 1_000_003 + step) * 1_000_003 + shard
                )
            noise = torch.empty_like(local).normal_(generator=generators[place])
            local.add_(noise.mul_(_scale(optimizer, local.device)), alpha=self._noise)


class ManagedOptimizers:
    """All optimizers among the arguments of one ``manage``, registered with ``loom``.

    ``can_vote``: whether the settings change on all ranks at one step, or on this worker alone.
    ``step``: returns the number of the step, the same on all ranks.
    ``clips``: whether ``clip_norm`` is registered; False where a framework clips by itself.
    """

    def __init__(
        self,
        loom: Any,
        parts: Iterable[Any],
        *,
        can_vote: bool,
        step: Callable[[], int],
        measure_update: bool,
        clips: bool = True,
    ) -> None:
        self._gradients: list[tuple[str, Gradients]] = []
        for each in managed(parts):
            if isinstance(each.optimizer, SwitchableOptimizer):
                each.optimizer.register(each.within(loom))
            loom.measure(each.optimizer)  # before the hook that clips
            each.register(loom, can_vote=can_vote)
            gradients = Gradients(each.optimizer, step=step, measure_update=measure_update)
            gradients.register(each.within(loom), clips=clips)
            self._gradients.append((each.prefix, gradients))

    def know_norm(self, norm: Tensor | float) -> None:
        """Spare the next step the norm of its gradients, where one optimizer has them all."""
        if len(self._gradients) == 1:
            self._gradients[0][1].known_norm = norm if isinstance(norm, Tensor) else _on_host(norm)

    def figures(self) -> dict[str, Tensor]:
        """Return the measurements of the last step, by their names in telemetry."""
        return {
            prefix + name: value
            for prefix, gradients in self._gradients
            for name, value in gradients.figures().items()
        }


def _not_negative(name: str, value: float) -> float:
    if not value >= 0:
        raise ValueError(f"need {name} >= 0, was {value}")
    return value


def _on_host(norm: float) -> Tensor:
    return torch.tensor(norm, dtype=torch.float32, device="cpu")


def _whole(norm: Tensor) -> Tensor:
    """Return a norm as a plain tensor: that of shards over all their ranks."""
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def _scale(optimizer: Any, device: torch.device) -> Tensor | float:
    """Return the factor by which a GradScaler's fused optimizer has its gradients too large."""
    scale = getattr(optimizer, "grad_scale", None)
    if isinstance(scale, Tensor):
        return scale.to(device, non_blocking=True)
    return 1.0 if scale is None else scale


def _local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor: all, or its shard."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _shard(tensor: Tensor) -> int:
    """Return the index of this rank's shard of a tensor; replicas have the same index."""
    shard = 0
    if isinstance(tensor, DTensor):
        mesh = tensor.device_mesh
        for dimension, placement in enumerate(tensor.placements):
            if placement.is_shard():
                shard = shard * mesh.size(dimension) + mesh.get_local_rank(dimension)
    return shard


def _alike(some: list[Tensor], others: list[Tensor]) -> bool:
    return len(some) == len(others) and all(
        one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
        for one, other in zip(some, others, strict=True)
    )
