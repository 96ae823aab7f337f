"""The rows of workers in the status: in pages, filtered, and in sum."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from heapq import nlargest

from torchloom_core.config.schema import Config
from torchloom_core.interface.needs import windows_s
from torchloom_core.live.fleet.standing import OVER
from torchloom_core.live.kernel.kernel import Kernel
from torchloom_core.live.kernel.plugins.host import ActivePlugins
from torchloom_core.wire.operator import Page
from torchloom_core.wire.status import WorkerStatus

SHOW_GONE_S = 600.0
"""How long a worker that has ended is shown."""

UNUSUAL = 20
"""How many workers a summary names at most."""

_OF_A_KIND = 5
_FAULTS = frozenset({"killed", "failed", "gone"})


class WorkerRows:
    """The workers at one moment, each row made only when it is asked for."""

    def __init__(self, kernel: Kernel, config: Config, plugins: ActivePlugins, now_ns: int) -> None:
        self._fleet = fleet = kernel.fleet
        self._forecasts = kernel.forecasts.newest
        self._stale_after_s = config.weaver.stale_after_s
        self._view = view = fleet.view(now_ns, self._forecasts)
        shown = sorted({*windows_s(plugins.needs), *config.weaver.show})
        self._metrics = {name: view.latest(name) for name in shown}

    def page(self, page: Page) -> Iterator[WorkerStatus]:
        """Yield the rows of a page, and those after it."""
        first = self._fleet.row_of.get(page.after, -1) + 1
        hello = self._fleet.hello
        for row in range(first, len(hello)):
            word = self._word(row)
            if (
                word
                and page.state in ("", word)
                and page.group in ("", hello[row].group)
                and page.role in ("", hello[row].role)
            ):
                yield self._status(row)

    def counts(self) -> dict[str, dict[str, int]]:
        """Return by role how many workers are in which state, the most frequent first."""
        found: dict[str, Counter[str]] = {}
        for word, hello in zip(self._words, self._fleet.hello, strict=True):
            if word:
                found.setdefault(hello.role, Counter())[word] += 1
        return {role: dict(states.most_common()) for role, states in found.items()}

    def unusual(self) -> list[WorkerStatus]:
        """Return crash loops, silent and failed workers, those at risk and those that stall."""
        words, view = self._words, self._view
        faults = (
            [row for row, word in enumerate(words) if word == "crash-looping"],
            [row for row, word in enumerate(words) if word == "silent"],
            [row for row, word in enumerate(words) if word in _FAULTS],
        )
        ages_s = view.progress_age_s
        stalled = [
            row
            for row, word in enumerate(words)
            if word == "training" and ages_s[row] > self._stale_after_s
        ]
        hazard = self._hazard
        at_risk = [row for row in range(len(words)) if words[row] and hazard(row) > 0]
        found = dict.fromkeys(
            [
                *(row for rows in faults for row in rows[:_OF_A_KIND]),
                *_greatest(stalled, lambda row: float(ages_s[row])),
                *_greatest(at_risk, hazard),
            ]
        )
        return [self._status(row) for row in list(found)[:UNUSUAL]]

    def _hazard(self, row: int) -> float:
        worker = self._fleet.hello[row].worker
        return max((one.hazard.get(worker, 0.0) for one in self._forecasts.values()), default=0.0)

    @cached_property
    def _words(self) -> list[str]:
        return [*map(self._word, range(len(self._fleet.hello)))]

    def _word(self, row: int) -> str:
        """Return the state of a row, or how it ended; "" if that was long ago."""
        state = self._view.state[row]
        if state == "gone" and self._view.heartbeat_age_s[row] >= SHOW_GONE_S:
            return ""
        return self._ending(row) or state

    def _ending(self, row: int) -> str:
        fleet, state = self._fleet, self._view.state[row]
        loop = fleet.crash_loops.of.get(row)
        if loop is not None and not loop.gave_up:
            return "crash-looping"
        if state == "gone":
            return fleet.ending[row]
        is_silent = self._view.heartbeat_age_s[row] > self._stale_after_s
        return "silent" if is_silent and state not in OVER else ""

    def _status(self, row: int) -> WorkerStatus:
        view, fleet, worker = self._view, self._fleet, self._view.workers[row]
        return WorkerStatus(
            worker=worker,
            group=view.group[row],
            role=view.role[row],
            stage=int(view.stage[row]),
            node=view.node[row],
            rack=view.rack[row],
            state=view.state[row],
            step=int(view.step[row]),
            incarnation=fleet.hello[row].incarnation,
            heartbeat_age_s=float(view.heartbeat_age_s[row]),
            progress_age_s=float(view.progress_age_s[row]),
            knobs=fleet.knobs[row],
            metrics={n: float(v[row]) for n, v in self._metrics.items() if math.isfinite(v[row])},
            hazards={n: f.hazard[worker] for n, f in self._forecasts.items() if worker in f.hazard},
            ending=self._ending(row),
        )


def _greatest(rows: Iterable[int], key: Callable[[int], float]) -> list[int]:
    return nlargest(_OF_A_KIND, rows, key=key)
