"""Checks that both contracts use."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from torchloom_core.interface.needs import PolicyNeed, windows_s
from torchloom_core.interface.view import FleetView


def check_class(cls: type[Any]) -> None:
    """Fail unless name and Options fit the config."""
    name = getattr(cls, "name", None)
    assert isinstance(name, str) and name.isidentifier(), (  # noqa: PT018 - one rule
        f"need a class attribute name that is an identifier, was {name!r}"
    )
    options = getattr(cls, "Options", None)
    assert isinstance(options, type) and issubclass(options, msgspec.Struct), (  # noqa: PT018
        f"need a class attribute Options that is a msgspec.Struct, was {options!r}"
    )
    config = options.__struct_config__
    assert config.frozen, "need Options with frozen=True"
    assert config.forbid_unknown_fields, (
        "need Options with forbid_unknown_fields=True, or a misspelt option is not noticed"
    )


def build(cls: type[Any], options: Mapping[str, Any]) -> Any:
    """Return an instance with the options as in ``torchloom.toml``."""
    return cls(msgspec.convert(dict(options), cls.Options))


def snapshot(view: FleetView, needs: Sequence[PolicyNeed]) -> dict[str, Any]:
    """Return a copy of all data of a view, to be compared with ``==``."""
    copied = {
        name: value.tobytes() if isinstance(value, np.ndarray) else copy.deepcopy(value)
        for name, value in vars(view).items()
        if name not in {"_metrics", "_computed", "roster"}  # a roster cannot be modified
    }
    for metric, window_s in windows_s(needs).items():
        copied[f"window of {metric}"] = view.window(metric, window_s).tobytes()
        copied[f"latest {metric}"] = view.latest(metric).tobytes()
    return copied


def check_unchanged(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Fail if two snapshots of a view differ."""
    changed = sorted(
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    )
    assert not changed, f"need an unchanged view, changed were: {', '.join(changed)}"
