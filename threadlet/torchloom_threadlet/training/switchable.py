"""An optimizer that may be switched to another between two steps: the knob ``optimizer``.

::

    inner = SwitchableOptimizer(
        model.parameters(),
        {"adamw": AdamW, "sgd": lambda params: SGD(params, lr=0.1), "muon": MuonWithAdamW},
        start="adamw",
        warmup_steps=20,
    )
    optimizer = Optimizer(manager, inner)  # torchft's, as ever
    inner.register(loom)

The state of an optimizer is carried over to another kind: all of them have the mean of gradients,
each in its own scale; only Adam has the mean of their squares.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

State = dict[str, Any]
Group = dict[str, Any]
Kind = Literal["adam", "sgd", "muon", "other"]

_ADAM = {"step", "exp_avg", "exp_avg_sq"}
Factory = Callable[[list[dict[str, Any]]], Optimizer]


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
            "step": torch.zeros(
                (), dtype=torch.float32, device=parameter.device if on_device else "cpu"
            ),
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


class SwitchableOptimizer(Optimizer):
    """One of several optimizers at a time, on the same parameters.

    Its groups and state are those of the active one. Each keeps its own settings (rate, decay,
    betas) while another is active; its state is dropped. The active one's state is carried over to
    the next, as far as it fits, and the rate rises linearly over ``warmup_steps`` after a switch.
    All of it is in the state dict, so a joiner continues with the peer's optimizer.

    A scheduler refers to the groups that it was made with: make a new one after a switch.

    Parameters
    ----------
    params : iterable
        Of parameters or of groups. A group's setting (a decay of 0 for biases) is valid for all
        optimizers.
    factories : mapping
        Name to a function that makes the optimizer for groups.
    start : str
        The first one to be active.
    warmup_steps : int
        Steps after a switch until the rate is complete; 0 for none.
    """

    def __init__(
        self,
        params: Iterable[Any],
        factories: Mapping[str, Factory],
        start: str,
        warmup_steps: int = 0,
    ) -> None:
        if start not in factories:
            raise ValueError(_unknown(start, factories))
        if warmup_steps < 0:
            raise ValueError(f"need warmup_steps >= 0, was {warmup_steps}")
        super().__init__(params, {})
        self._optimizers = {
            name: make([dict(group) for group in self.param_groups])
            for name, make in factories.items()
        }
        self._warmup_steps = warmup_steps
        self._warmed = warmup_steps
        self._enter(start)

    @property
    def active(self) -> str:
        """The name of the optimizer that makes the steps."""
        return self._active

    def switch(self, name: str) -> None:
        """Use another optimizer from the next step on.

        Raises
        ------
        ValueError
            If there is none of this name.
        """
        if name not in self._optimizers:
            raise ValueError(_unknown(name, self._optimizers))
        if name == self._active:
            return
        old, new = self._optimizers[self._active], self._optimizers[name]
        groups = {parameter: group for group in old.param_groups for parameter in group["params"]}
        with torch.no_grad():
            for group in new.param_groups:
                for parameter in group["params"]:
                    before = old.state.get(parameter, {})
                    state = carried(before, groups[parameter], group, parameter)
                    if state:
                        new.state[parameter] = state
        old.state.clear()
        self._warmed = 0
        self._enter(name)

    def register(self, loom: Any) -> None:
        """Register the knob ``optimizer``, before the settings of the active optimizer.

        Knobs are set in the order of their registration: a joiner needs its peer's optimizer
        before that optimizer's momentum is set.
        """
        loom.knob(
            "optimizer",
            lambda: self.active,
            self.switch,
            kind="choice",
            choices=self._optimizers,
            fence="run",
            doc="the optimizer that makes the steps",
        )

    def step(self, closure: Any = None) -> Any:
        """Make a step with the active optimizer."""
        optimizer = self._optimizers[self._active]
        if self._warmed >= self._warmup_steps:
            return optimizer.step(closure)
        self._warmed += 1
        rates = [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            group["lr"] = group["lr"] * (self._warmed / self._warmup_steps)
        try:
            return optimizer.step(closure)
        finally:
            for group, rate in zip(self.param_groups, rates, strict=True):
                group["lr"] = rate

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters to all optimizers."""
        if not hasattr(self, "_optimizers"):
            super().add_param_group(param_group)
            return
        param_group = {**param_group, "params": list(param_group["params"])}
        for optimizer in self._optimizers.values():
            optimizer.add_param_group(dict(param_group))

    def state_dict(self) -> dict[str, Any]:
        """Return the active optimizer's state and name, and all optimizers' settings."""
        return {
            **self._optimizers[self._active].state_dict(),
            "active": self._active,
            "warmed": self._warmed,
            "settings": {
                name: [_settings(group) for group in optimizer.param_groups]
                for name, optimizer in self._optimizers.items()
            },
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Switch to the optimizer of this state, and load it.

        Raises
        ------
        ValueError
            If this one has other optimizers, or other parameters.
        """
        active, all_settings = state_dict["active"], state_dict["settings"]
        if all_settings.keys() != self._optimizers.keys():
            ours, theirs = ", ".join(self._optimizers), ", ".join(all_settings)
            raise ValueError(f"need a state of the optimizers {ours}, was of {theirs}")
        state = {name: state_dict[name] for name in ("state", "param_groups")}
        self._optimizers[active].load_state_dict(state)
        for name, settings in all_settings.items():
            optimizer = self._optimizers[name]
            for group, values in zip(optimizer.param_groups, settings, strict=True):
                group.update(values)
            if name != active:
                optimizer.state.clear()
        self._warmed = state_dict["warmed"]
        self._enter(active)
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)

    def _enter(self, name: str) -> None:
        self._active = name
        self.param_groups = self._optimizers[name].param_groups
        self.state = self._optimizers[name].state


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _unknown(name: str, names: Iterable[str]) -> str:
    return f"need one of {', '.join(names)}, was {name}"
