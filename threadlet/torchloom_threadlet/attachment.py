"""What all ``attach`` functions share: one process is one worker, attached once."""

import logging
import os
import sys
import threading
from collections.abc import Mapping

import msgspec

from torchloom_core.floor.errors import ConfigError
from torchloom_threadlet.adapter import Adapter
from torchloom_threadlet.identity import PlacementArguments, find_join, identify
from torchloom_threadlet.loom import Loom
from torchloom_threadlet.trainer.sidecar_start import SIDECAR_OF
from torchloom_threadlet.trainer.standby_tasks import StandbyTasks

_logger = logging.getLogger(__name__)
_lock = threading.Lock()
_attached: dict[int, tuple[Loom, dict[str, object]]] = {}
"""By process id: a forked child is a process of its own."""


def attach_once(
    adapter: Adapter,
    join: str | os.PathLike[str] | None,
    placement: PlacementArguments,
    *,
    held: bool = False,
    standby_tasks: StandbyTasks | None = None,
    is_own_group: bool = False,
) -> Loom:
    """Return this process's loom: the existing one, or a new one.

    ``is_own_group``: whether the worker is a replica group alone, and named after it.

    Raises ConfigError if this process is attached already, with other arguments.
    Raises SystemExit if this process is an application that was started instead of a sidecar.
    """
    _end_if_sidecar()
    identity = identify(**placement)
    if is_own_group:
        identity = msgspec.structs.replace(identity, worker=identity.placement.group)
    if _is_importing_for_spawn():
        _logger.debug("torchloom is inert while multiprocessing imports the parent's script")
        return Loom(identity, None, adapter, held=held, standby_tasks=standby_tasks)
    with _lock:
        place = find_join(join)
        arguments = {
            "join": str(place[0]) if place else "",
            "framework": adapter.framework,
            "standby": identity.standby,
            **msgspec.structs.asdict(identity.placement),
            "held": held,
        }
        present, before = _attached.get(os.getpid(), (None, {}))
        if present is not None and not present.is_over:
            _refuse_others(arguments, before)
            if type(present.adapter) is type(adapter):
                present.attach_again()
                return present
            raise ConfigError("attach: another module's attach() has attached this process already")
        if present is not None:
            present.close_for_next()
        loom = Loom(identity, place, adapter, held=held, standby_tasks=standby_tasks)
        _attached.clear()
        _attached[os.getpid()] = loom, arguments
    loom.begin()
    return loom


def _refuse_others(arguments: Mapping[str, object], before: Mapping[str, object]) -> None:
    for name, value in arguments.items():
        if value != before[name]:
            raise ConfigError(
                f"attach: {name}: this process is attached already with {before[name]!r}, "
                f"was {value!r}; to attach anew, call loom.close() first"
            )


def _end_if_sidecar() -> None:
    """End an application that was started as an interpreter: it would start itself for ever."""
    if trainer := os.environ.get(SIDECAR_OF):
        _logger.error(
            "this program was started as the sidecar of process %s, but is a trainer: exiting; "
            "set TORCHLOOM_PYTHON to a Python interpreter in which torchloom is installed",
            trainer,
        )
        raise SystemExit(1)


def _is_importing_for_spawn() -> bool:
    """Return whether multiprocessing prepares this process, such as a data loader's worker.

    ``spawn`` and ``forkserver`` import the parent's script first and only then receive what to
    run.
    """
    process = sys.modules.get("multiprocessing.process")
    return process is not None and getattr(process.current_process(), "_inheriting", False)
