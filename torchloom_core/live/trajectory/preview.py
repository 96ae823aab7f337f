"""Put a preview together from its pieces, and describe its result in sentences."""

import math
import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

from torchloom_core.live.trajectory.standby_tasks import Pieces
from torchloom_core.wire.knobs import shown
from torchloom_core.wire.operations import Rehearse
from torchloom_core.wire.preview import (
    FEWEST_PAIRS,
    MOST_STEPS,
    PREVIEW,
    Arm,
    Curve,
    Extrapolation,
    Judgement,
    Piece,
    Setup,
)
from torchloom_core.wire.standby_task import MOST_POINTS, Loss

WITHOUT, WITH = "without the change", "with it"


class Point(NamedTuple):
    """An arm's losses in a range of steps that ends at ``step``, over all repeats."""

    step: int
    least: float
    mean: float
    most: float


class Preview(Pieces):
    """The newest preview so far; ``curves`` are by repeat and arm, step by step."""

    kind = PREVIEW
    verb = str(Rehearse.__struct_config__.tag)
    piece = Piece

    def reset(self) -> None:
        """Reset for another preview."""
        self.setup: Setup | None = None
        self.judged: Judgement | None = None
        self.curves: dict[tuple[int, Arm], list[Loss]] = {}
        self._room = MOST_POINTS

    def add(self, piece: Setup | Curve | Judgement, command: str) -> None:
        """Add a piece; a curve may come again, and is cut to the maximum size of a preview."""
        match piece:
            case Setup():
                self.setup = piece
            case Judgement():
                self.judged = piece
            case Curve(repeat=repeat, arm=arm, first=first, losses=losses):
                curve = self.curves.setdefault((repeat, arm), [])
                longer = min(max(0, first + len(losses) - len(curve)), self._room)
                self._room -= longer
                curve += [None] * longer
                curve[first : first + len(losses)] = losses[: max(0, len(curve) - first)]

    def band(self, arm: Arm, most: int = MOST_STEPS) -> list[Point]:
        """Return an arm's finite losses over its repeats, in at most ``most`` ranges of steps."""
        curves = [curve for (_, name), curve in self.curves.items() if name == arm]
        steps = max(map(len, curves), default=0)
        stride = math.ceil(max(1, steps, self.setup.steps if self.setup else 0) / most)
        found = []
        for first in range(0, steps, stride):
            parts = [curve[first : first + stride] for curve in curves]
            losses = [loss for part in parts for loss in part if loss is not None]
            if losses:
                last = min(first + stride, steps)
                found.append(Point(last, min(losses), statistics.fmean(losses), max(losses)))
        return found

    @property
    def change(self) -> str:
        """The change that is tried, such as ``lr 0.1 -> 0.2``."""
        if self.setup is None:
            return ""
        before, values = self.setup.before, self.setup.values
        was = {name: shown(before[name]) if name in before else "?" for name in values}
        changes = (f"{name} {was[name]} -> {shown(values[name])}" for name in values)
        return ", ".join(changes) or "no change"

    def words(self) -> Iterator[tuple[str, str]]:
        """Yield the result as lines of a name and a sentence."""
        if self.setup is not None:
            yield "change", self.change
        elif self.judged is not None:
            yield "change", "announced before this page was connected; see the record"
        if self.judged is not None:
            yield "verdict", verdict_text(self.judged)
            if self.judged.ahead is not None:
                yield "forecast", _ahead_text(self.judged.ahead)
        if self.setup is not None or self.judged is not None:
            yield "warning", warning_text(self.setup.steps if self.setup else None)
        if self.end is not None:
            why = f": {self.end.why}" if self.end.why else ""
            yield "tried", f"{self.end.points} steps in {self.end.seconds:.1f} s{why}"
        elif self.version:
            yield "tried", f"{self.points} of {self.of} steps"

    def contents(self) -> dict[str, Any]:
        """Return what was computed as plain dicts and lists."""
        return {
            "setup": self.setup,
            "curves": [
                {"repeat": repeat, "arm": arm, "losses": losses}
                for (repeat, arm), losses in sorted(self.curves.items())
            ],
            "judgement": self.judged,
            "words": dict(self.words()),
        }


def verdict_text(judged: Judgement) -> str:
    """Return the verdict on the change in one sentence."""
    pairs = "1 pair" if judged.pairs == 1 else f"{judged.pairs} pairs"
    if judged.alike:
        return f"no difference: both arms are bit-identical in {pairs}"
    how = _how(judged, pairs)
    if judged.result == "few":
        return f"undecided, need {FEWEST_PAIRS} pairs: {how}"
    verdicts = {"better": "better", "worse": "worse", "same": "no significant difference"}
    return f"{verdicts[judged.result]}: {how}"


def _how(judged: Judgement, pairs: str) -> str:
    over = "at the last step" if judged.over == 1 else f"over the last {judged.over} steps"
    if judged.diverged:
        diverged = f"with the change the loss becomes NaN or inf in {judged.diverged} of {pairs}"
        if judged.difference is None:
            return diverged
        return f"{diverged}; the median difference is {judged.difference:+.4g} {over}"
    interval = f"{_signed(judged.low)} to {_signed(judged.high)}"
    return (
        f"the change moves the loss by {_signed(judged.difference)} {over}, the median of {pairs} "
        f"({interval} with probability {judged.confidence:.2f}), lower in {judged.for_change}"
    )


def warning_text(steps: int | None) -> str:
    """Return the preview's limitation in one sentence; None: the number of steps is unknown."""
    after = "the last step" if steps is None else f"{steps} steps"
    return (
        f"valid for {after} only: a change that helps over a few steps may hurt over many, such "
        "as a learning rate that is too low in the long run"
    )


def _ahead_text(ahead: Extrapolation) -> str:
    losses = f"{_spread(ahead.control)} {WITHOUT}, {_spread(ahead.change)} {WITH}"
    return f"at step {ahead.steps}, extrapolated from both curves: {losses}"


def _spread(losses: tuple[float, float, float] | None) -> str:
    if losses is None:
        return "not finite"
    least, median, most = losses
    return f"{median:.4g} ({least:.4g} to {most:.4g})"


def _signed(loss: Loss) -> str:
    return "not finite" if loss is None else f"{loss:+.4g}"
