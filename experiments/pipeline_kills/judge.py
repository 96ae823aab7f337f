"""What the workers' logs say of each kill."""

import itertools
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch


class Kill(msgspec.Struct):
    """One death, or several at once, and what it cost.

    Attributes
    ----------
    answer : str
        How the others went on, as :func:`answer_of` names it.
    known_s : float
        From the last death until the last survivor knew.
    stall_s : float
        From the last commit before the first death to the next commit.
    redone : int
        Steps that only the dead had committed.
    """

    phase: str
    victims: list[int]
    answer: str = ""
    problem: str = ""
    known_s: float = 0.0
    stall_s: float = 0.0
    redone: int = 0


class Result(msgspec.Struct):
    """Of a whole run."""

    kills: list[Kill]
    steps: int
    step_s: float
    lost_steps: int
    other_losses: int
    other_weights: int


@dataclass
class Worker:
    """A worker's process, as its log tells; it is read on with each look."""

    name: str
    process: int
    log: Path
    commits: list[tuple[float, int, str]] = field(default_factory=list)
    begun: list[tuple[float, int, str]] = field(default_factory=list)
    known: list[float] = field(default_factory=list)
    died_s: float | None = None
    has_warmed: bool = False
    layers: set[int] = field(default_factory=set)
    _at: int = 0
    _since: int = 0

    def _read(self) -> None:
        if not self.log.exists():
            return
        with self.log.open() as file:
            file.seek(self._at)
            while (line := file.readline()).endswith("\n"):
                self._at += len(line)
                self._take(line.split())

    def _take(self, words: list[str]) -> None:
        event, at = words[0], float(words[1])
        if event == "commit":
            self.commits.append((at, int(words[2]), words[3]))
            self._since += 1
        elif event == "begun":
            self.begun.append((at, int(words[2]), " ".join(words[4:])))
            self.layers = {int(layer) for layer in words[3].split(",")}
            self._since = 0
        elif event == "known":
            self.known.append(at)
        elif event == "dying":
            self.died_s = at
        elif event == "warm":
            self.has_warmed = True

    @property
    def generation(self) -> int:
        """The last generation in which it had a part."""
        self._read()
        return self.begun[-1][1] if self.begun else 0

    @property
    def since_begun(self) -> int:
        """Steps in this generation."""
        self._read()
        return self._since

    @property
    def is_warm(self) -> bool:
        """Whether it stands by."""
        self._read()
        return self.has_warmed

    @property
    def steps(self) -> int:
        """How many it has committed."""
        self._read()
        return self.commits[-1][1] if self.commits else 0

    @property
    def last_commit_s(self) -> float:
        """When it has committed the last one."""
        self._read()
        return self.commits[-1][0] if self.commits else 0.0


def judged(
    workers: list[Worker],
    kills: list[Kill],
    losses: list[str],
    weights: dict[int, Any],
    folder: Path,
) -> Result:
    """Return what the kills cost, and whether the run is the undisturbed one to the bit."""
    for worker in workers:
        worker.steps  # noqa: B018 - reads the rest of the log
    for kill in kills:
        _measure(kill, workers)
    lost = other = 0
    for worker in workers:
        # A worker that had no part meanwhile learns of the step that it starts from, not its loss.
        lost += sum(
            later != step + 1 and loss != "nan"
            for (_, step, _), (_, later, loss) in itertools.pairwise(worker.commits)
        )
        seen = [(step, loss) for _, step, loss in worker.commits if loss != "nan"]
        other += sum(loss != losses[step - 1] for step, loss in seen)
    saved = [torch.load(path, weights_only=True) for path in folder.glob("*.pt")]
    differ = sum(not torch.equal(w[n], weights[n]) for w in saved for n in w)
    if {n for w in saved for n in w} != set(weights):
        differ += 1
    times = sorted({step: at for w in workers for at, step, _ in w.commits}.items())
    gaps = [b - a for (_, a), (_, b) in itertools.pairwise(times)]
    return Result(kills, len(losses), statistics.median(gaps), lost, other, differ)


def _measure(kill: Kill, workers: list[Worker]) -> None:
    died = [w.died_s for w in workers if w.process in kill.victims and w.died_s is not None]
    if not died:
        kill.problem = kill.problem or "nobody died"
        return
    first_s, last_s = min(died), max(died)
    others = [w for w in workers if w.process not in kill.victims]
    known = [min(at for at in w.known if at >= last_s) for w in others if _knew(w, last_s)]
    kill.known_s = max((at - last_s for at in known), default=0.0)
    commits = [(at, step) for w in others for at, step, _ in w.commits]
    before = max((at for at, _ in commits if at <= first_s), default=first_s)
    # The dead's own last step counts as the run's only if a survivor has it, too.
    after = min((at for at, _ in commits if at > last_s), default=None)
    theirs = max(
        (s for w in workers if w.process in kill.victims for _, s, _ in w.commits), default=0
    )
    ours = max((step for at, step in commits if at <= last_s), default=0)
    kill.redone = max(0, theirs - ours)
    if after is None:
        kill.problem = kill.problem or "no later step"
    else:
        begun = min((at for w in others for at, *_ in w.begun if at > last_s), default=after)
        after = min((at for at, _ in commits if at > begun), default=after)
        kill.stall_s = after - before
        whys = [(at, why) for w in others for at, _, why in w.begun if at <= after]
        kill.answer = answer_of(max(whys, default=(0.0, ""))[1])


def answer_of(why: str) -> str:
    """Return which kinds of answer an assignment's reason names, as docs/pipelines.md does."""
    kinds = {
        " for ": "a standby takes the stage",
        " in place of ": "fewer stages",
        "its lost stage at": "a peer computes both",
        "on replica": "on another route",
        "route, ": "all anew",
        "of 2 routes": "all anew",
        "again": "the same again",
    }
    found = [kind for part in why.split("; ") for words, kind in kinds.items() if words in part]
    return ", ".join(dict.fromkeys(found)) or why


def _knew(worker: Worker, died_s: float) -> bool:
    """Return whether a worker had a part when another died, and heard of it."""
    had_part = any(at < died_s for at, *_ in worker.begun)
    ended = worker.died_s is not None and worker.died_s < died_s
    return had_part and not ended and any(died_s <= at < died_s + 5 for at in worker.known)
