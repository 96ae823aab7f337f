"""Muon as it is commonly used: for the matrices of the hidden layers, with AdamW for the rest."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Muon, Optimizer


class MuonWithAdamW(Optimizer):
    """``torch.optim.Muon`` for matrices, ``torch.optim.AdamW`` for other parameters.

    Muon's learning rate is adjusted to AdamW's update (``match_rms_adamw``), so that both use the
    same rate.

    Parameters
    ----------
    params : iterable
        Of parameters, or of groups; each group is split in two.
    by_adamw : iterable of torch.Tensor
        Matrices for AdamW all the same: usually embeddings and the last layer.
    lr, weight_decay
        Of both.
    momentum
        Of Muon.
    betas
        Of AdamW.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        by_adamw: Iterable[Tensor] = (),
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.95),
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        excepted = {id(tensor) for tensor in by_adamw}
        halves: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
        for group in self.param_groups:
            for half, wanted in zip(halves, (True, False), strict=True):
                params = [p for p in group["params"] if wanted == _by_muon(p, excepted)]
                if params:
                    half.append({**group, "params": params})
        matrices, others = halves
        self._optimizers: list[Optimizer] = []
        if matrices:
            muon = Muon(matrices, momentum=momentum, adjust_lr_fn="match_rms_adamw")
            self._optimizers.append(muon)
        if others:
            self._optimizers.append(AdamW(others, betas=betas))
        self.param_groups = [group for part in self._optimizers for group in part.param_groups]
        self._share()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, during construction only."""
        if hasattr(self, "_optimizers"):
            raise ValueError("MuonWithAdamW takes parameters only when it is made")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Do a step of both."""
        for optimizer in self._optimizers:
            optimizer.step()

    def _share(self) -> None:
        """Let both use these groups and this state: users see and save only this optimizer's."""
        self.state = defaultdict(dict, self.state)
        groups = iter(self.param_groups)
        for optimizer in self._optimizers:
            optimizer.param_groups = [next(groups) for _ in optimizer.param_groups]
            optimizer.state = self.state


def _by_muon(parameter: Tensor, excepted: set[int]) -> bool:
    return parameter.ndim == 2 and id(parameter) not in excepted
