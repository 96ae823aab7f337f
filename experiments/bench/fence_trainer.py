"""One replica group of the fence's benchmark: torchft DDP, with torchLoom and without it in turns.

``python fence_trainer.py LIGHTHOUSE TURNS STEPS PAUSE_S``: attach, wait for a line, print one line
of JSON with the seconds that a step took in each turn of each arm. All groups change over at the
same step of the run's counter.
"""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
from scene import report
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

from torchloom_threadlet.adapters.torchft import adapter, fenced_steps
from torchloom_threadlet.torchft import attach

WIDTH = 1000
WARM_STEPS = 20
SKIPPED = 2
"""Steps at the head of each turn that are not counted."""
ARMS = ("alone", "unfenced", "fenced")
"""torchft alone; with all of torchLoom but the vote; with all of it."""


class SwitchedSteps(fenced_steps.FencedSteps):
    """A fence that is out of the way where ``on`` is false."""

    on = True

    def _started(self, *arguments: Any, **named: Any) -> Any:
        step = super()._started if self.on else self._start_quorum
        return step(*arguments, **named)

    def _committed(self, *arguments: Any, **named: Any) -> Any:
        commit = super()._committed if self.on else self._should_commit
        return commit(*arguments, **named)


class SwitchedBallots:
    """The ballots of a Manager, to be taken off and put back on."""

    def __init__(self, manager: Any) -> None:
        self._manager, self._ballots = manager, manager._client

    def put(self, on: bool) -> None:
        """Let them travel with the requests for quorums, or not."""
        ballots = self._ballots
        self._manager._client = ballots if on else ballots._client
        handle = ballots._handle_with_ballot if on else ballots._handle
        self._manager._pg.get_reconfigure_handle = handle


class Hooks:
    """What torchLoom has put on an object, to be taken off and put back."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        self._before = dict(vars(owner))
        self._own: dict[str, Callable[..., Any]] = {}

    def keep(self) -> None:
        """Remember what was put on since."""
        now = vars(self._owner)
        new = {k: v for k, v in now.items() if callable(v) and self._before.get(k) is not v}
        self._own = {k: v for k, v in new.items() if hasattr(type(self._owner), k)}

    def put(self, on: bool) -> None:
        """Put all of it on or take it off."""
        for name, own in self._own.items():
            if on:
                setattr(self._owner, name, own)
            else:
                with suppress(AttributeError):
                    delattr(self._owner, name)


def main() -> None:
    """Measure with the options of the command line."""
    lighthouse = sys.argv[1]
    turns, steps = map(int, sys.argv[2:4])
    pause_s = float(sys.argv[4])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    adapter.FencedSteps = SwitchedSteps  # type: ignore[misc]
    model = torch.nn.Linear(WIDTH, WIDTH)
    inner = torch.optim.SGD(model.parameters(), lr=1e-4)
    loom = attach()
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    sys.stdin.readline()
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=60)),
        load_state_dict=model.load_state_dict,
        state_dict=model.state_dict,
        min_replica_size=1,
        use_async_quorum=False,
        replica_id=loom.group,
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        hostname="localhost",
    )
    optimizer = Optimizer(manager, inner)
    parallel = DistributedDataParallel(manager, model)
    hooks = [Hooks(manager), Hooks(manager._pg)]
    loom.manage(manager, optimizer)
    for hook in hooks:
        hook.keep()
    ballots = SwitchedBallots(manager)
    order = [arm for turn in range(turns) for arm in ARMS[:: 1 if turn % 2 else -1]]
    took: dict[str, list[float]] = {arm: [] for arm in ARMS}
    seconds: list[float] = []
    inputs = torch.ones(1, WIDTH)
    while (step := manager.current_step() - WARM_STEPS) < len(order) * steps:
        turn, within = divmod(step, steps)
        arm = order[turn] if turn >= 0 else ARMS[-1]
        if within == 0:
            SwitchedSteps.on = arm == "fenced"
            for hook in hooks:
                hook.put(arm != "alone")
            ballots.put(arm == "fenced")
        began = time.perf_counter()
        optimizer.zero_grad()
        time.sleep(pause_s)
        loss = parallel(inputs).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if arm != "alone":
            loom.step(loss=loss)
        if turn >= 0 and within >= SKIPPED:
            seconds.append(time.perf_counter() - began)
        if turn >= 0 and within == steps - 1:
            took[arm].append(sum(seconds) / len(seconds))
            seconds.clear()
    report(**took)
    sys.stdin.readline()  # peers may still read from this process
    loom.close()
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main()
