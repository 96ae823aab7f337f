"""Carries one optimizer's state over to another kind of optimizer.

Called by the switchable optimizer. All of them have the mean of gradients, each in its own
scale; only Adam has the mean of their squares.
"""

from typing import Any, Literal

import torch
from torch import Tensor

State = dict[str, Any]
Group = dict[str, Any]
Kind = Literal["adam", "sgd", "muon", "other"]

_ADAM = {"step", "exp_avg", "exp_avg_sq"}


def kind(group: Group) -> Kind:
    """Return the kind of optimizer for the parameters of a group."""
    if "ns_steps" in group:
        return "muon"
    if {"betas", "amsgrad", "maximize", "capturable"} <= group.keys() and not group["amsgrad"]:
        return "adam"
    if {"momentum", "dampening", "nesterov"} <= group.keys():
        return "sgd"
    return "other"


def carried(old: State, old_group: Group, group: Group, parameter: Tensor) -> State:
    """Return the state of a parameter at its start in ``group``; empty if it starts anew.

    - Adam to Adam: all of it.
    - To SGD and Muon: the mean of gradients; for SGD as the sum that its momentum tends to.
    - To Adam: its second moment starts anew, and with it the bias correction. So that this does not
      enlarge the mean, it counts as one gradient before the first step, in both moments: with
      a next gradient of 0, as most are with topk, the mean would be divided by 0.
    """
    ours, theirs = kind(group), kind(old_group)
    if ours == theirs == "adam" and old.keys() == _ADAM:
        return {name: tensor.clone() for name, tensor in old.items()}
    mean = _mean_gradient(old, old_group)
    if mean is None:
        return {}
    if ours == "adam":
        beta1, beta2 = map(float, group["betas"])
        on_device = group["capturable"] or group.get("fused")
        return {
            "step": torch.zeros((), device=parameter.device if on_device else "cpu"),
            "exp_avg": mean * (1 - beta1),
            "exp_avg_sq": mean.square() * (1 - beta2),
        }
    if ours == "sgd" and group["momentum"]:
        return {"momentum_buffer": mean * _tends_to(group)}
    if ours == "muon":
        return {"momentum_buffer": mean}
    return {}


def _mean_gradient(state: State, group: Group) -> Tensor | None:
    """Return a state's running mean of gradients, in a new tensor."""
    scale, mean = 1.0, None
    if kind(group) == "adam" and state.keys() == _ADAM and float(state["step"]) > 0:
        scale, mean = 1 - float(group["betas"][0]) ** float(state["step"]), state["exp_avg"]
    elif kind(group) in ("sgd", "muon"):
        scale = _tends_to(group) if kind(group) == "sgd" else 1.0
        mean = state.get("momentum_buffer")
    return None if mean is None else torch.div(mean, scale)


def _tends_to(group: Group) -> float:
    """Return the sum of SGD's weights of past gradients."""
    return (1 - float(group["dampening"])) / (1 - float(group["momentum"])) or 1.0
