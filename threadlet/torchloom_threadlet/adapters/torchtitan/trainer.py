"""A torchtitan trainer of any class whose ranks are attached: they vote between two steps."""

import dataclasses
import os
import sys
from typing import Any

from torchtitan.config import ConfigManager

from torchloom_core.floor.errors import ConfigError
from torchloom_threadlet.adapters.framework import attach_framework
from torchloom_threadlet.adapters.torchtitan.adapter import TorchtitanAdapter
from torchloom_threadlet.identity import PlacementArguments
from torchloom_threadlet.loom import Loom

GROUP_VARIABLES = ("TORCHLOOM_GROUP", "REPLICA_GROUP_ID")


class LoomSteps:
    """What an attached trainer does between two steps: mixed into a class of torchtitan's.

    Attributes
    ----------
    loom : Loom
        From the first step on; inert without a Weaver.
    """

    loom: Loom | None = None

    def should_continue_training(self: Any) -> bool:
        """Report the step that is over, carry out commands, and return whether to train on."""
        if self.loom is None:  # a checkpoint is loaded, and no step made
            self.loom = attach(self)
            self.loom.manage()
            if not self.loom.inert:
                adapter = self.loom.adapter
                adapter.measurements.start(adapter.note_norm)
        elif not self.loom.inert:
            measured = self.loom.adapter.measurements.take()
            if not self.loom.step(self.step, **measured):
                return False
        return bool(super().should_continue_training())  # type: ignore[misc]

    def close(self: Any) -> None:
        """Leave on purpose, unless torchtitan closes a trainer that has failed."""
        if self.loom is not None and sys.exc_info()[0] is None:
            if not self.loom.inert:
                self.loom.adapter.measurements.end()
            self.loom.close()
        super().close()  # type: ignore[misc]


def attach(trainer: Any) -> Loom:
    """Return the loom of a trainer's rank; torchft's group 1 is ``g1``, unless it has a name."""
    if not has_groups(trainer.config):
        return attach_framework(TorchtitanAdapter(trainer))
    from torchloom_threadlet.adapters.torchtitan.replica_groups import ReplicaGroupsAdapter

    placement: PlacementArguments = {}
    if not any(map(os.environ.get, GROUP_VARIABLES)):
        placement["group"] = f"g{trainer.config.fault_tolerance.replica_id}"
    return attach_framework(ReplicaGroupsAdapter(trainer), **placement)


def has_groups(config: Any) -> bool:
    """Return whether a trainer has torchft's replica groups."""
    return bool(getattr(getattr(config, "fault_tolerance", None), "enable", False))


def config_of(name: str) -> Any:
    """Return torchtitan's configuration ``MODULE.FUNCTION``, as by its ``--module``, ``--config``.

    Raises
    ------
    ConfigError
        If there is none.
    """
    module, _, function = name.rpartition(".")
    try:
        config, _ = ConfigManager()._load_config(["--module", module, "--config", function])
    except (ImportError, ValueError) as error:
        raise ConfigError(f"--config {name}: need MODULE.FUNCTION: {error}") from error
    return config


def attached(config: Any) -> Any:
    """Return a trainer's configuration whose trainer is attached.

    Parameters
    ----------
    config : Trainer.Config
        Of torchtitan's trainer, or of a subclass of it.

    Examples
    --------
    >>> from torchloom_threadlet.adapters.torchtitan import attached  # doctest: +SKIP
    >>> def my_config():
    ...     return attached(llama3_debugmodel())
    """
    owner, kind = type(config)._owner, type(config)
    if issubclass(owner, LoomSteps):
        return config
    body = {"__module__": __name__, "__qualname__": f"Attached{owner.__name__}.Config"}
    own: Any = dataclasses.dataclass(kw_only=True, slots=True)(type("Config", (kind,), body))
    type(f"Attached{owner.__name__}", (LoomSteps, owner), {"Config": own, "__module__": __name__})
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return own(**values)
