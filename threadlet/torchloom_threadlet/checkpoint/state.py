"""What a checkpoint holds of this rank: models, optimizers, schedulers, the data, random states."""

import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from torchloom_core.floor.errors import CheckpointError
from torchloom_threadlet.checkpoint.json_state import decode, encode
from torchloom_threadlet.checkpoint.loader_state import (
    is_loader,
    refuse_other_workers,
    resume_loader,
)
from torchloom_threadlet.checkpoint.torchft_state import ManagerState, is_manager
from torchloom_threadlet.training.optimizer_knobs import unwrapped


class Gathered(NamedTuple):
    """A state as it is now: its tensors by name, not copied, and the rest as JSON values.

    ``own`` belongs to this rank, ``shared`` is the same on all ranks; both name their tensors.
    """

    tensors: dict[str, Tensor]
    shared: Any
    own: Any


class TrainingState:
    """The objects that a script gave to ``loom.checkpoints``.

    Parameters
    ----------
    parts
        Models, optimizers, learning-rate schedulers, and anything else with ``state_dict`` and
        ``load_state_dict``, which belongs to its rank: data loaders, samplers.
    own : mapping
        More of this rank's, by name.
    """

    def __init__(self, parts: Iterable[Any], own: Mapping[str, Any] | None = None) -> None:
        self.models: dict[str, nn.Module] = {}
        self.optimizers: dict[str, Any] = {}
        self.shared: dict[str, Any] = {}
        self.own: dict[str, Any] = dict(own or {})
        for part in parts:
            if isinstance(part, nn.Module):
                _add(self.models, "model", part)
            elif hasattr(part, "zero_grad") and hasattr(part, "step"):
                _add(self.optimizers, "optim", _whole(unwrapped(part)))
            elif is_manager(part):
                _add(self.shared, "manager", ManagerState(part))
            elif not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                kind = type(part).__qualname__
                raise CheckpointError(
                    f"loom.checkpoints: need models, optimizers, schedulers and loaders with "
                    f"state_dict and load_state_dict, was {kind}"
                )
            elif hasattr(part, "optimizer") and hasattr(part, "step"):
                _add(self.shared, "scheduler", part)
            elif isinstance(part, torch.amp.GradScaler):
                _add(self.shared, "scaler", part)
            else:
                _add(self.own, "loader", part)

    @property
    def steppers(self) -> list[torch.optim.Optimizer]:
        """The optimizers whose steps change the weights."""
        return [one for one in self.optimizers.values() if isinstance(one, torch.optim.Optimizer)]

    def steady(self) -> set[str]:
        """Return the names of tensors that change only when an optimizer steps."""
        return {
            f"{name}.{fqn}"
            for name, model in self.models.items()
            for fqn, _ in _named_weights(model)
        } | {
            f"{name}.state.{fqn}.{key}"
            for name, optimizer in self.optimizers.items()
            if isinstance(optimizer, torch.optim.Optimizer)
            for fqn, weight in self._weights().items()
            for key, value in optimizer.state.get(weight, {}).items()
            if isinstance(value, Tensor)
        }

    def gather(self, rank: int) -> Gathered:
        """Return the state as it is now; CheckpointError names what cannot be saved."""
        tensors: dict[str, Tensor] = {}
        shared: dict[str, Any] = {}
        for name, model in self.models.items():
            shared[name] = encode(get_model_state_dict(model), name, tensors)
        for name, optimizer in self.optimizers.items():
            shared[name] = encode(self._optimizer_state(optimizer), name, tensors)
        for name, part in self.shared.items():
            shared[name] = encode(part.state_dict(), name, tensors)
        own = {name: part.state_dict() for name, part in self.own.items()}
        own["random"] = random_states()
        return Gathered(tensors, shared, encode(own, f"rank{rank}", tensors))

    def target(self, names: Mapping[str, Sequence[int]], dtypes: Mapping[str, torch.dtype]) -> Any:
        """Return fresh tensors for the names of a checkpoint, laid out as the objects need them.

        ``names`` are the shapes of the checkpoint's tensors. CheckpointError if a model has other
        names, shapes or types.
        """
        fresh: dict[str, Tensor] = {}
        live: dict[str, Tensor] = {}
        for name, model in self.models.items():
            encode(get_model_state_dict(model), name, live)
        for name, tensor in live.items():
            _refuse_other(name, tensor, names, dtypes)
            fresh[name] = torch.empty_like(tensor)
        weights = {
            f"{name}.state.{fqn}.": weight
            for name in self.optimizers
            for fqn, weight in self._weights().items()
        }
        models = tuple(f"{name}." for name in self.models)
        for name in names:
            if name in fresh:
                continue
            if name.startswith(models):
                raise CheckpointError(f"the model has no {name.partition('.')[2]}")
            prefix = name.rpartition(".")[0] + "."
            like = weights.get(prefix)
            if like is not None and tuple(like.shape) == tuple(names[name]):
                fresh[name] = torch.empty_like(like, dtype=dtypes[name])
            else:
                fresh[name] = torch.empty(tuple(names[name]), dtype=dtypes[name], device="cpu")
        return fresh

    def load(self, tensors: Mapping[str, Tensor], shared: Any, own: Any) -> None:
        """Take over a state that was gathered here or by another world.

        ``own``: this rank's part, None if it was saved by fewer ranks.
        """
        state = decode(shared, tensors)
        for name, model in self.models.items():
            set_model_state_dict(model, state[name])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(self._numbered(optimizer, state[name]))
        for name, part in self.shared.items():
            part.load_state_dict(state[name])
        if own is not None:
            mine = decode(own, tensors)
            for name, part in self.own.items():
                if is_loader(part):
                    resume_loader(part, mine[name])
                else:
                    part.load_state_dict(mine[name])
            set_random_states(mine["random"])

    def refuse_other_parts(self, shared: Mapping[str, Any], own: Mapping[str, Any] | None) -> None:
        """Raise CheckpointError, before anything is changed, if the script has other parts."""
        wanted = {*self.models, *self.optimizers, *self.shared}
        if own is not None:
            wanted |= {*self.own, "random"}
        there = {*shared, *(own or ())}
        if wanted != there:
            missing, more = sorted(wanted - there), sorted(there - wanted)
            raise CheckpointError(
                f"need {', '.join(sorted(wanted))}; "
                + (
                    f"it has no {', '.join(missing)}"
                    if missing
                    else f"it has {', '.join(more)} too"
                )
            )
        for name, optimizer in self.optimizers.items():
            self._refuse_other_groups(name, optimizer, shared[name])
        for name, part in self.own.items():
            if own is not None and is_loader(part):
                refuse_other_workers(name, part, own[name])

    def _weights(self) -> dict[str, Tensor]:
        """Return the parameters of all models by their full names, without wrappers' prefixes."""
        found: dict[str, Tensor] = {}
        for number, model in enumerate(self.models.values()):
            for name, weight in _named_weights(model):
                found[("" if not number else f"{number + 1}:") + name] = weight
        return found

    def _optimizer_state(self, optimizer: Any) -> Any:
        if not isinstance(optimizer, torch.optim.Optimizer):
            return optimizer.state_dict()
        names = {id(weight): name for name, weight in self._weights().items()}
        return {
            "state": {
                _named(names, weight): dict(of) for weight, of in optimizer.state.items() if of
            },
            "groups": [
                {key: value for key, value in group.items() if key != "params"} | {"params": of}
                for group, of in zip(optimizer.param_groups, self._groups(optimizer), strict=True)
            ],
        }

    def _groups(self, optimizer: torch.optim.Optimizer) -> list[list[str]]:
        """Return the names of the parameters of each group, "" for one that no model has."""
        names = {id(weight): name for name, weight in self._weights().items()}
        return [
            [names.get(id(weight), "") for weight in group["params"]]
            for group in optimizer.param_groups
        ]

    def _refuse_other_groups(self, name: str, optimizer: Any, state: Mapping[str, Any]) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            return
        now, saved = self._groups(optimizer), [group["params"] for group in state["groups"]]
        if len(now) != len(saved):
            raise CheckpointError(f"{name}: need {len(now)} parameter groups, was {len(saved)}")
        for number, (mine, theirs) in enumerate(zip(now, saved, strict=True)):
            if mine != theirs:
                other = next(iter({*mine} ^ {*theirs}), "another order")
                raise CheckpointError(
                    f"{name}: need the same parameters in group {number}, was other: {other}"
                )
        for group, theirs in zip(optimizer.param_groups, state["groups"], strict=True):
            missing, more = {*optimizer.defaults} - {*theirs}, {*theirs} - {*group}
            if missing and more:  # either alone may be another version of torch
                raise CheckpointError(
                    f"{name}: need an optimizer with {', '.join(sorted(missing))}, "
                    f"was saved by one with {', '.join(sorted(more))}"
                )

    def _numbered(self, optimizer: Any, state: Any) -> Any:
        """Return a state by full names as torch's ``load_state_dict`` expects it, by numbers."""
        if not isinstance(optimizer, torch.optim.Optimizer):
            return state
        order = [name for group in self._groups(optimizer) for name in group]
        numbers = iter(range(len(order)))
        groups = [
            {**saved_group, "params": [next(numbers) for _ in group["params"]]}
            for saved_group, group in zip(state["groups"], optimizer.param_groups, strict=True)
        ]
        by_number = {
            n: state["state"][name] for n, name in enumerate(order) if name in state["state"]
        }
        return {"state": by_number, "param_groups": groups}


def _whole(optimizer: Any) -> Any:
    """Return an optimizer; CheckpointError if it has a part of the state on each rank."""
    if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
        raise CheckpointError(
            "loom.checkpoints: need an optimizer whose state a model's ranks share or shard "
            "by DTensor, was ZeroRedundancyOptimizer"
        )
    return optimizer


def _named(names: Mapping[int, str], weight: Tensor) -> str:
    try:
        return names[id(weight)]
    except KeyError:
        raise CheckpointError("the optimizer has a parameter that no model here has") from None


def _add(parts: dict[str, Any], kind: str, part: Any) -> None:
    if not any(part is other for other in parts.values()):
        parts[f"{kind}{len(parts) + 1}" if parts else kind] = part


def _named_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters by the names that ``get_model_state_dict`` gives them.

    The prefixes of DDP and ``torch.compile`` are left out, not those of other wrappers.
    """
    inner = []
    for path, module in model.named_modules():
        name = "module" if isinstance(module, DistributedDataParallel) else "_orig_mod"
        if name in module._modules:
            inner.append((f"{path}." if path else "", f"{name}."))
    inner.reverse()  # the deepest first
    for name, weight in model.named_parameters():
        for outer, prefix in inner:
            if name.startswith(outer + prefix):
                name = outer + name.removeprefix(outer + prefix)
        yield name, weight


def _refuse_other(
    name: str,
    tensor: Tensor,
    names: Mapping[str, Sequence[int]],
    dtypes: Mapping[str, torch.dtype],
) -> None:
    what = name.partition(".")[2]
    if name not in names:
        raise CheckpointError(f"it has no {what}")
    if tuple(tensor.shape) != tuple(names[name]):
        raise CheckpointError(
            f"{what}: need the shape {tuple(tensor.shape)}, was {tuple(names[name])}"
        )
    if tensor.dtype != dtypes[name]:
        raise CheckpointError(f"{what}: need {tensor.dtype}, was {dtypes[name]}")


def random_states() -> dict[str, Any]:
    """Return the states of the random generators of Python, numpy, torch and its devices."""
    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if numpy := sys.modules.get("numpy"):
        states["numpy"] = numpy.random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def set_random_states(states: Mapping[str, Any]) -> None:
    """Restore what :func:`random_states` returned, as far as this process has the generators."""
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if (numpy := sys.modules.get("numpy")) and "numpy" in states:
        numpy.random.set_state(states["numpy"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"][: torch.cuda.device_count()])


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
