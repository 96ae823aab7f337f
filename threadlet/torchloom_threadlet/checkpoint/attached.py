"""What ``loom.checkpoints`` does: knobs, commands and SIGTERM work on the checkpointer."""

import logging
import math
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, TypedDict, Unpack

from torchloom_core.checkpoints.storage import LocalFolder, storage_at
from torchloom_core.floor.errors import CheckpointError
from torchloom_core.wire.checkpoint_tiers import MEMORY, PATH, REMOTE, TIERS
from torchloom_core.wire.start_phases import RESTORE
from torchloom_threadlet.checkpoint.checkpointer import Checkpointer
from torchloom_threadlet.checkpoint.loop import UPLOAD_KNOB, LoopState, TrainingLoop
from torchloom_threadlet.checkpoint.nodes import Nodes
from torchloom_threadlet.checkpoint.parking import ParkingCheckpointer
from torchloom_threadlet.checkpoint.saving_ranks import SavingRanks
from torchloom_threadlet.checkpoint.sources import Sources
from torchloom_threadlet.checkpoint.tiers import Tier
from torchloom_threadlet.checkpoint.torchft_state import is_manager
from torchloom_threadlet.checkpoint.writer.orders import TierPlace
from torchloom_threadlet.trainer.first_batch import mark_first_batch

_logger = logging.getLogger(__name__)

_LONGEST_S = 30 * 86_400.0
_MAY_BE_0 = ("keep", "keep_every_s", "memory_every_s", "remote_keep")
_MOST_BYTES_PER_S = 1e12


class CheckpointOptions(TypedDict, total=False):
    """Where and how often checkpoints are saved.

    Attributes
    ----------
    every_s : float
        Training between two checkpoints in ``path``, seconds; 600 by default.
    keep : int
        The newest complete checkpoints that stay in ``path``, 3 by default; 0: all.
    keep_every_s : float
        Besides, the first checkpoint of each such span of time stays, in ``path`` and ``remote``,
        seconds; 0, the default: none.
    memory_every_s : float
        Training between two checkpoints in the memory of this node and another one, seconds;
        0, the default: none.
    remote : str or PathLike
        Another folder or URL, as of an object store; none by default.
    remote_every_s : float
        Training between two checkpoints there, seconds; 3600 by default.
    remote_keep : int
        The newest complete checkpoints that stay there, 3 by default; 0: all.
    remote_small : bool
        Whether those there are small: about a fifth of the bytes, and rounded; every 24th is
        exact. False by default.
    """

    every_s: float
    keep: int
    keep_every_s: float
    memory_every_s: float
    remote: str | os.PathLike[str]
    remote_every_s: float
    remote_keep: int
    remote_small: bool


def attach_checkpoints(
    loom: Any,
    parts: Sequence[Any],
    path: str | os.PathLike[str],
    **options: Unpack[CheckpointOptions],
) -> Checkpointer:
    """Return the checkpointer of a loom, with the newest checkpoint loaded.

    Raises CheckpointError as the checkpointer does, and if an option is unknown or out of range.
    """
    _refuse_bad(options)
    for name, where in (("path", path or None), ("remote", options.get("remote", ""))):
        if not isinstance(where, str | os.PathLike):
            raise CheckpointError(f"loom.checkpoints: {name}: need a folder or URL, was {where!r}")
    worker = loom.adapter.worker
    loop, ranks, place = TrainingLoop(loom, tuple(parts)), SavingRanks(), os.fspath(path)
    nodes, memory_every_s = None, options.get("memory_every_s", 0.0)
    if memory_every_s > 0:
        placement = worker.identity.placement
        is_alone = not any(map(is_manager, parts))
        nodes = Nodes(ranks, placement.node, placement.rack, storage_at(place), is_alone=is_alone)
        if nodes.problem:
            _logger.warning("no checkpoints in the memory of nodes: %s", nodes.problem)
            nodes = None
    tiers = []
    if nodes is not None:
        memory = TierPlace(
            name=MEMORY,
            place=str(nodes.folder),
            keep=1,
            host=nodes.host,
            copy=nodes.copy.store if nodes.copy is not None else None,
            home=nodes.home.store if nodes.home.name != nodes.here.name else None,
        )
        tiers.append(Tier(memory, memory_every_s))
    keep_every_s = options.get("keep_every_s", 0.0)
    path_place = TierPlace(
        name=PATH, place=place, keep=options.get("keep", 3), keep_every_s=keep_every_s
    )
    tiers.append(Tier(path_place, options.get("every_s", 600.0)))
    if remote := os.fspath(options.get("remote", "")):
        remote_place = TierPlace(
            name=REMOTE,
            place=remote,
            keep=options.get("remote_keep", 3),
            is_small=options.get("remote_small", False),
            keep_every_s=keep_every_s,
        )
        tiers.append(Tier(remote_place, options.get("remote_every_s", 3600.0)))
    with worker.starting.phase(RESTORE):
        own = {"loom": LoopState(loom, loop.position)}
        sources = _sources(place, remote, nodes, ranks)
        if nodes is None or any(map(is_manager, parts)):
            checkpointer = Checkpointer(parts, own, tiers, sources, ranks, loop)
        else:
            checkpointer = worker.parking = ParkingCheckpointer(
                parts, own, tiers, sources, ranks, loop, nodes=nodes
            )
    if nodes is not None:
        loop.at_end = nodes.end
    for part in parts:
        mark_first_batch(part, worker.starting)
    for tier in tiers:
        _register_interval(loom, tier)
    if any("://" in tier.place.place or tier.place.copy for tier in tiers):
        _register_limit(loom, checkpointer)
    loom.on_checkpoint(checkpointer.save)
    loom.on("store", checkpointer.store)
    _leave_at_sigterm(checkpointer)
    return checkpointer


def _refuse_bad(options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if name not in CheckpointOptions.__annotations__:
            known = ", ".join(CheckpointOptions.__annotations__)
            raise CheckpointError(f"loom.checkpoints: need {known}, was {name}")
        if name == "remote":
            continue
        if name == "remote_small":
            if not isinstance(value, bool):
                raise CheckpointError(f"loom.checkpoints: {name}: need a bool, was {value!r}")
            if value and find_spec("numpy") is None:
                raise CheckpointError(f"loom.checkpoints: {name}: need numpy: pip install numpy")
            continue
        least = 0.0 if name in _MAY_BE_0 else 1e-3
        if not isinstance(value, int | float) or not least <= value < math.inf:
            raise CheckpointError(f"loom.checkpoints: {name}: need >= {least:g}, was {value!r}")


def _sources(place: str, remote: str, nodes: Nodes | None, ranks: SavingRanks) -> Sources:
    """Return from where this rank reads checkpoints, and which of them it names to the others."""
    path = storage_at(place)
    kinds, listed = [[path]], [path] if ranks.rank == 0 else []
    far = storage_at(remote) if remote else None
    if far is not None:
        kinds.append([far])
        listed += [far] if ranks.rank == 0 else []
    if nodes is not None:
        own = LocalFolder(nodes.folder)
        kinds += [[own], nodes.others()]
        listed += [own] if nodes.is_first_here else []
    return Sources(path, [kind for kind in kinds if kind], listed, far)


def _register_interval(loom: Any, tier: Tier) -> None:
    def set_interval(seconds: float) -> None:
        tier.every_s = seconds

    loom.knob(
        TIERS[tier.name].knob,
        lambda: tier.every_s,
        set_interval,
        low=1.0,
        high=_LONGEST_S,
        doc=f"training between two checkpoints in the tier {tier.name}, seconds",
    )


def _register_limit(loom: Any, checkpointer: Checkpointer) -> None:
    now = 0.0

    def set_limit(bytes_per_s: float) -> None:
        nonlocal now
        now = bytes_per_s
        checkpointer.limit(bytes_per_s)

    loom.knob(
        UPLOAD_KNOB,
        lambda: now,
        set_limit,
        low=0.0,
        high=_MOST_BYTES_PER_S,
        doc="limit of what a rank's checkpoints send to other nodes and stores; 0: no limit",
    )


def _leave_at_sigterm(checkpointer: Checkpointer) -> None:
    """Save and leave at SIGTERM, if the script does nothing of its own at it."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda *_: checkpointer.leave())
