"""What became of a rank's saves: what it logs, tells the Weaver and measures."""

import logging
from collections import deque
from collections.abc import Callable, Mapping

from torchloom_core.floor.plain_text import plain_line
from torchloom_core.wire.checkpoint_tiers import FAILED, MEMORY, NOT_COPIED, REMOTE, SAVED
from torchloom_threadlet.checkpoint.felt import FeltCosts
from torchloom_threadlet.checkpoint.full_ones import FullOnes
from torchloom_threadlet.checkpoint.loop import TrainingLoop
from torchloom_threadlet.checkpoint.saver import Saver
from torchloom_threadlet.checkpoint.tiers import Tier
from torchloom_threadlet.checkpoint.writer.orders import Report

_STEP_BITS = 40

_logger = logging.getLogger(__name__)


def number_of(generation: int, step: int) -> int:
    """Return a number that rises with each checkpoint of a run."""
    return generation << _STEP_BITS | step


def number_parts(number: int) -> tuple[int, int]:
    """Return the generation and the step of a checkpoint's number."""
    return divmod(number, 1 << _STEP_BITS)


class Outcomes:
    """Takes the reports of a rank's writer.

    Attributes
    ----------
    good : int
        The number of the newest checkpoint that is complete in the memory of nodes; 0: none.
    is_any : bool
        Whether there is a complete checkpoint.
    lost : deque of int
        Steps of saves that this rank could not make, and the others do not know of.
    felt : FeltCosts
        What saves cost.
    full : FullOnes
        Which checkpoints are full ones.
    """

    def __init__(
        self,
        tiers: Mapping[str, Tier],
        saver: Saver,
        loop: TrainingLoop,
        rank: int,
        rewind: Callable[[], None],
    ) -> None:
        self._tiers, self._saver, self._loop = tiers, saver, loop
        self._rank, self._rewind = rank, rewind
        self.good = 0
        self.is_any = False
        self.lost: deque[int] = deque()
        self.felt, self.full = FeltCosts(), FullOnes()

    def note_any(self) -> None:
        """Note that there is a complete checkpoint."""
        self.is_any = True
        self._loop.may_rewind(self._rewind)

    def take(self, report: Report) -> None:
        """Take note of what the writer reports."""
        tier, why = self._tiers[report.tier], plain_line(report.detail)
        fields = {"tier": report.tier, "step": report.step, "seconds": report.seconds}
        match report.what:
            case "not_removed":
                _logger.warning("an old checkpoint is not removed: %s", why)
            case "not_copied":
                text = "the checkpoint at step %d has no copy on another node: %s"
                _logger.warning(text, report.step, why)
                self._loop.note(NOT_COPIED, {**fields, "why": report.detail})
            case "failed" | "incomplete":
                if report.what == "failed":
                    self.lost.append(report.step)
                self._end(tier, report.step, saved=False)
                where = "" if len(self._tiers) == 1 else f" in the tier {report.tier}"
                text = "the checkpoint at step %d is not saved%s: %s"
                _logger.warning(text, report.step, where, why)
                self._loop.note(FAILED, {**fields, "why": report.detail})
            case "stored" if self._rank != 0:
                self._end(tier, report.step, saved=True)
            case "complete":
                felt_s = self._end(tier, report.step, saved=True)
                if report.tier == MEMORY:
                    self.good = max(self.good, number_of(report.generation, report.step))
                self.note_any()
                more = {"bytes": report.bytes, "felt_s": felt_s, "blocked_s": self._saver.blocked_s}
                self._loop.note(SAVED, fields | more)

    def fail(self, step: int, why: str) -> None:
        """Note that the state at a step was not handed to the writer."""
        self.complain(step, why)
        for tier in self._tiers.values():
            if tier.step == step:
                self._end(tier, step, saved=False)

    def lose(self) -> None:
        """Note that the writer ended before it had stored what is under way."""
        for tier in self._tiers.values():
            if tier.is_saving and tier.step is not None:
                self.complain(tier.step, "the writer has ended", tier.name)
                self._end(tier, tier.step, saved=False)

    def give_up(self) -> None:
        """Take no more reports of what is being stored: another replica group saves from now on."""
        self.full.is_needed = True
        for tier in self._tiers.values():
            if tier.is_saving and tier.step is not None:
                self._end(tier, tier.step, saved=False)

    def complain(self, step: int, why: str, tier: str = "") -> None:
        """Log that there is no checkpoint, in a tier or in all; tell other ranks and the Weaver."""
        self.lost.append(step)
        where = f" in the tier {tier}" if tier and len(self._tiers) > 1 else ""
        _logger.warning("no checkpoint at step %d%s: %s", step, where, plain_line(why))
        of_tier = {"tier": tier} if tier else {}
        self._loop.note(FAILED, {"step": step, "why": why, **of_tier})

    def _end(self, tier: Tier, step: int, *, saved: bool) -> float:
        """Note the end of a save; return what the run felt of it, seconds."""
        tier.end(step, saved=saved)
        self.full.is_needed |= tier.name == REMOTE and not saved
        felt_s = self.felt.end(tier.name, self._saver.blocked_s, saved=saved)
        if saved:
            tier.felt_s = self.felt.usual_s(tier.name)
        return felt_s
