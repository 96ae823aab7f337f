"""A trial of a population, which takes another's weights and new values between two steps.

The scheduler calls :func:`give` and :func:`take` in the trial's actor, while the training function
waits in ``tune.report``.
"""

import json
import logging
from collections.abc import Mapping
from typing import Any, cast

import ray
import safetensors.torch
import torch
from ray import tune
from ray.train._internal.session import get_session

from torchloom_core.floor.errors import ConfigError
from torchloom_threadlet.adapters.framework import attach_framework
from torchloom_threadlet.adapters.ray.adapter import RayAdapter
from torchloom_threadlet.checkpoint.json_state import decode, encode
from torchloom_threadlet.cleaning import error_line
from torchloom_threadlet.loom import Loom

_logger = logging.getLogger(__name__)


class Member:
    """The part of this trial in the population of a :class:`TorchLoomPBT`.

    Each hyperparameter that the scheduler mutates has to be a knob: ``lr``, ``weight_decay`` and
    so on are those of the optimizer; register others by ``member.loom.knob``.

    Parameters
    ----------
    **parts
        What is copied from a better member: models, optimizers, and anything else with
        ``state_dict`` and ``load_state_dict``. Optimizers and schedulers become knobs.

    Attributes
    ----------
    loom : Loom
        With a Weaver, the member's handle as a worker of the group named after its trial.

    Raises
    ------
    ConfigError
        If a part has no state, or this is not a trial of Ray Tune.
    """

    def __init__(self, **parts: Any) -> None:
        global _present
        for name, part in parts.items():
            if not hasattr(part, "load_state_dict"):
                raise ConfigError(f"Member: {name}: need load_state_dict, was {type(part)}")
        trial = tune.get_context().get_trial_id()
        if not trial:
            raise ConfigError("Member: need a trial of Ray Tune: create it in the trainable")
        self._parts = parts
        self._pending: tuple[Mapping[str, Any], bytes] | None = None
        self.loom = attach_framework(RayAdapter(), group=trial, rank=0)
        self.loom.measure(*(part for part in parts.values() if isinstance(part, torch.nn.Module)))
        self.loom.manage(
            *(
                part
                for part in parts.values()
                if isinstance(part, torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler)
            )
        )
        _end_with_trial(self.loom)
        _present = self

    def report(self, metrics: dict[str, Any], **options: Any) -> bool:
        """Report by ``tune.report``, then take what the scheduler has sent.

        Returns False once the member has been drained: leave the loop.
        """
        tune.report(metrics, **options)
        self.mutate()
        numbers: dict[str, Any] = {
            name: x for name, x in metrics.items() if isinstance(x, int | float) and name != "step"
        }
        return self.loom.step(metrics.get("step"), **numbers)

    def mutate(self) -> None:
        """Load a better member's state and set the new values, if the scheduler has sent some."""
        if self._pending is not None:
            (values, state), self._pending = self._pending, None
            self._load(state)
            actuators = self.loom.adapter.worker.actuators
            registered = [spec.name for spec in actuators.specs]
            for name in sorted(values.keys() - set(registered)):
                _logger.warning("Member: %s is mutated, but is no knob: %s", name, registered)
            for name in (name for name in registered if name in values):
                try:
                    actuators.set_knobs({name: values[name]})
                except Exception as error:  # noqa: BLE001 - such as a perturbed momentum above 1
                    _logger.warning("Member: %s keeps its value: %s", name, error_line(error))
            self.loom.adapter.worker.announce()
            self.loom.note("mutated", **values)

    def send(self, values: Mapping[str, Any], state: bytes) -> None:
        """Have the training thread take these when ``tune.report`` returns."""
        self._pending = values, state

    def state(self) -> bytes:
        """Return the parts' state as a safetensors file."""
        tensors: dict[str, torch.Tensor] = {}
        parts = {name: part.state_dict() for name, part in self._parts.items()}
        text = json.dumps(encode(parts, "state", tensors))
        whole = {name: one.detach().cpu().contiguous() for name, one in tensors.items()}
        data: bytes = safetensors.torch.save(_unshared(whole), {"state": text})
        return data

    def _load(self, data: bytes) -> None:
        length = int.from_bytes(data[:8], "little")
        text = json.loads(data[8 : 8 + length])["__metadata__"]["state"]
        state = decode(json.loads(text), safetensors.torch.load(data))
        for name, part in self._parts.items():
            part.load_state_dict(state[name])


def _end_with_trial(loom: Loom) -> None:
    """Report the end of this trial: Tune ends its process without running what is due at exit."""
    session = get_session()
    thread = session.training_thread
    finish, propagate = session.finish, thread._propagate_exception

    def stopped(timeout: float | None = None) -> Any:
        loom.close()  # of no effect once it has failed
        return finish(timeout=timeout)

    def failed(error: BaseException) -> None:
        cast("RayAdapter", loom.adapter).fail(error)
        propagate(error)

    session.finish, thread._propagate_exception = stopped, failed


_present: Member | None = None
"""The member in this process."""


def give(trainable: Any) -> tuple[int, Any] | None:
    """Return the member's iteration, and its state in Ray's object store; None without a member."""
    if _present is None:
        return None
    try:
        return trainable.iteration, ray.put(_present.state())
    except Exception as error:  # noqa: BLE001 - the population trains on
        _logger.warning("Member: its state cannot be copied: %s", error_line(error))
        return None


def take(trainable: Any, values: Mapping[str, Any], given: Any) -> bool:
    """Have the member load what another gave, and continue with its count of iterations."""
    try:
        found = ray.get(given)
        if _present is None or found is None:
            _logger.warning("TorchLoomPBT: need a Member in each trial: nothing is copied")
            return False
        iteration, state = found
        _present.send(values, ray.get(state))
    except Exception as error:  # noqa: BLE001 - the trial goes on as it is
        _logger.warning("TorchLoomPBT: the better member cannot be copied: %s", error_line(error))
        return False
    trainable._iteration = iteration
    trainable.config.update(values)
    return True


def _unshared(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copy tensors that share memory, such as tied weights: safetensors refuses them."""
    seen: set[int] = set()
    whole = {}
    for name, one in tensors.items():
        place = one.untyped_storage().data_ptr()
        whole[name] = one.clone() if place in seen else one
        seen.add(place)
    return whole
