"""The epochs of a Trainer whose batches change: it counts on a batch size that stays the same.

A Trainer reduces gradients at the last batch that it has drawn for a step, and steps where the
number of batches is a multiple of ``gradient_accumulation_steps``. Unless both are at the same
batch, each rank steps with its own gradients. So a change waits for such a multiple, which all
ranks reach at the same step.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch.utils.data import BatchSampler

from torchloom_threadlet.adapters.replaced import replaced
from torchloom_threadlet.adapters.transformers.place import Place


class Rewound(Exception):
    """Leaves an epoch after a rewind; :class:`Epochs` begins it anew."""


class Epochs:
    """Runs a Trainer's epochs from :attr:`start`, and again after a rewind.

    Parameters
    ----------
    trainer : Trainer
        About to train.
    is_attached : bool
        Whether the accumulation may change in an epoch.
    note_resumed : callable
        Called with the checkpoint of ours from which training continues, if any.

    Attributes
    ----------
    start : Place, optional
        Where a checkpoint of ours continues; the Trainer's own computation without one.
    batch_size, accumulation : int
        What was set: from the next epoch on, and from the next step that fits on.
    """

    def __init__(
        self, trainer: Any, *, is_attached: bool, note_resumed: Callable[[str], None]
    ) -> None:
        self._trainer, self._is_attached = trainer, is_attached
        self._note_resumed = note_resumed
        self._run = trainer._run_epoch
        self.start: Place | None = None
        self._has_begun = False
        self._epoch = self._batches = self._length = 0
        self._loader: Any = trainer.callback_handler.train_dataloader
        self._size = self._first_size = self.batch_size = self.known_size()
        self.accumulation = int(trainer.args.gradient_accumulation_steps)
        self.end = replaced(trainer, "_run_epoch", self._run_all)

    def known_size(self) -> int:
        """Return the batch size of each rank, 0 if it cannot change."""
        samplers = self._samplers()
        return int(samplers[0].batch_size) if samplers else 0

    def count_batch(self) -> None:
        """Take note that a batch has been trained on."""
        self._batches += 1

    def end_step(self) -> None:
        """Let a changed accumulation begin, at a step at whose end no batch is left over."""
        self._trainer.args.gradient_accumulation_steps = self._due_accumulation()

    def place(self) -> Place:
        """Return where training continues after this step."""
        if self._batches >= self._length:
            return Place(self._epoch + 1, 0, self.batch_size, self.accumulation)
        return Place(self._epoch, self._batches, self._size, self._due_accumulation())

    def go_to(self, place: Place, skip: int = 0) -> None:
        """Continue there, without the data of ``skip`` steps, once :class:`Rewound` is raised."""
        count = place.accumulation or int(self._trainer.args.gradient_accumulation_steps)
        self.start = place._replace(batches=place.batches + skip * count)
        self._has_begun = False

    def samples(self) -> int:
        """Return how many samples a step takes, on all ranks."""
        args = self._trainer.args
        size = self._size or int(self._trainer._train_batch_size)
        return size * int(args.gradient_accumulation_steps) * int(args.world_size)

    def _due_accumulation(self) -> int:
        present = int(self._trainer.args.gradient_accumulation_steps)
        is_whole = self._batches % self.accumulation == 0 or self._batches >= self._length
        return self.accumulation if is_whole else present

    def _run_all(self, **call: Any) -> None:
        """Run an epoch of the Trainer's loop, and what a checkpoint of ours has left before it."""
        trainer, outer, number = self._trainer, int(call["epoch"]), int(call["epoch"])
        if not self._has_begun:
            self._find_start(call)
        is_first, done = True, -1
        while number <= outer or self._is_short(outer, done):
            done = int(trainer.state.global_step)
            if not self._has_begun:
                assert self.start is not None
                number = self.start.epoch
                if number > outer and not self._is_short(outer, -1):
                    return
            if not is_first:
                begin = trainer.callback_handler.on_epoch_begin
                trainer.control = begin(trainer.args, trainer.state, trainer.control)
            is_first = False
            try:
                self._run_one(number, call)
            except Rewound:
                continue
            if trainer.control.should_training_stop:
                return
            number += 1

    def _is_short(self, outer: int, done: int) -> bool:
        """Return whether the Trainer's last epoch is over before ``max_steps``.

        It has counted its epochs with the batches of the script. ``done`` are the steps before
        the epoch that is over: one without a step is the last.
        """
        state = self._trainer.state
        is_last = outer + 1 >= int(state.num_train_epochs)
        return is_last and self._trainer.args.max_steps > state.global_step > done

    def _find_start(self, call: Mapping[str, Any]) -> None:
        checkpoint = call["resume_from_checkpoint"]
        if self.start is None:
            own = int(call["epochs_trained"]), int(call["steps_trained_in_current_epoch"])
            self.start = Place(*own, checkpoint=checkpoint)
        elif self.start.checkpoint is None:
            self.start = self.start._replace(checkpoint=checkpoint)
            self._note_resumed(checkpoint)

    def _run_one(self, number: int, call: Mapping[str, Any]) -> None:
        assert self.start is not None
        start, continues = self.start, not self._has_begun
        self._has_begun = True
        own: dict[str, Any] = {"epoch": number, "epochs_trained": -1}
        size, accumulation, self._batches = self.batch_size, self.accumulation, 0
        if continues:
            size = start.batch_size or size
            accumulation = start.accumulation or accumulation
            self._batches = start.batches
            own |= {"epochs_trained": number, "steps_trained_in_current_epoch": start.batches}
            own["resume_from_checkpoint"] = start.checkpoint
        self._put_size(size)
        self._trainer.args.gradient_accumulation_steps = accumulation
        self._epoch = number
        has_first_size = size == self._first_size
        self._length = int(call["steps_in_epoch"]) if has_first_size else len(self._loader)
        own["steps_in_epoch"] = self._length
        if self._is_attached:  # the most that there can be, if the accumulation becomes 1
            own["num_update_steps_per_epoch"] = self._length
        self._run(**{**call, **own})

    def _put_size(self, size: int) -> None:
        for sampler in self._samplers():
            sampler.batch_size = size
        self._size = size

    def _samplers(self) -> list[Any]:
        """Return what draws the batches of this rank, each within the one before."""
        found, sampler = [], getattr(self._loader, "batch_sampler", None)
        if getattr(sampler, "split_batches", False):
            return []
        while type(getattr(sampler, "batch_size", None)) is int:
            found.append(sampler)
            sampler = getattr(sampler, "batch_sampler", None)
        return found if found and type(found[-1]) is BatchSampler else []
