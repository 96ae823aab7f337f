"""What an actor that trains calls, and the mark of its endpoint."""

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar, Unpack, cast

import torch.distributed as dist
from monarch.actor import context

from torchloom_core.floor.errors import ConfigError
from torchloom_threadlet.adapters.framework import attach_framework
from torchloom_threadlet.adapters.monarch.adapter import MonarchAdapter
from torchloom_threadlet.identity import PlacementArguments
from torchloom_threadlet.loom import Loom

P = ParamSpec("P")
R = TypeVar("R")

_STOPS = ("CancelledError", "KeyboardInterrupt")
"""By which Monarch stops an actor; the first is asyncio's."""

_present: Loom | None = None
"""Of this process, which is one worker whatever actors it has."""


def attach(*parts: Any, alone: bool = False, **placement: Unpack[PlacementArguments]) -> Loom:
    """Attach the process of this actor; call it in an endpoint, on all actors of the mesh.

    Actors that train together call it after ``torch.distributed.init_process_group``. Then call
    ``loom.step`` at the end of each step.

    Parameters
    ----------
    *parts
        Optimizers, each followed by its scheduler if it has one, for ``loom.manage``; without
        them call it yourself.
    alone : bool
        Whether each actor of the mesh trains a model of its own. It is then a replica group,
        named after the actor and its position in the mesh: ``trainer-3``.
    **placement
        As for :func:`torchloom_threadlet.attach`; the rank is torch.distributed's.

    Raises
    ------
    ConfigError
        If it is not called in an actor, torch.distributed is not initialized, or this process is
        attached already with other arguments.
    """
    global _present
    actor = context().actor_instance
    if actor.creator is None:
        raise ConfigError(
            "attach: need an actor of a mesh: call it in an endpoint, not in the controller"
        )
    if alone:
        placement.setdefault("group", f"{actor.name}-{actor.rank.rank}")
        placement.setdefault("rank", 0)
    elif actor.rank.extent.nelements > 1 and not dist.is_initialized():
        raise ConfigError(
            "attach: need torch.distributed.init_process_group before, or attach(alone=True) for "
            "actors that train alone"
        )
    # The same in all processes of a controller, also in a mesh that it spawns again.
    if job := os.environ.get("MONARCH_CLIENT_TRACE_ID"):
        os.environ.setdefault("TORCHLOOM_JOB", f"monarch:{job}")
    _present = loom = attach_framework(MonarchAdapter(alone=alone), **placement)
    if parts:
        loom.manage(*parts)
    return loom


def training(endpoint: Callable[P, R]) -> Callable[P, R]:
    """Mark an endpoint that trains, below ``@endpoint``: an exception in it is a fault.

    Monarch returns the exception to the caller, and the actor continues: without the mark the
    worker would look like one that hangs. A loom that is attached in the endpoint is closed when
    it returns; a new call of it then attaches anew.

    Raises
    ------
    ConfigError
        If it stands above ``@endpoint``.
    """
    if not inspect.isfunction(endpoint):
        raise ConfigError("training: need a function: write @training below @endpoint")
    if inspect.iscoroutinefunction(endpoint):

        @functools.wraps(endpoint)
        async def awaited(*arguments: Any, **named: Any) -> Any:
            with _reported():
                return await endpoint(*arguments, **named)

        return cast("Callable[P, R]", awaited)

    @functools.wraps(endpoint)
    def called(*arguments: P.args, **named: P.kwargs) -> Any:
        with _reported():
            return endpoint(*arguments, **named)

    return called


@contextlib.contextmanager
def _reported() -> Iterator[None]:
    before = _present
    try:
        yield
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:
            _close(before)  # a loop that continued after its drain: the actor itself stays
            return
        if type(error).__name__ in _STOPS:
            _close(before)
        elif _present is not None:
            cast("MonarchAdapter", _present.adapter).fail(error)
        raise
    _close(before)


def _close(before: Loom | None) -> None:
    """Close a loom that the endpoint has attached."""
    if _present is not None and _present is not before:
        _present.close()
