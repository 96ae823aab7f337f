"""Rollouts from the queue for trl's GRPOTrainer, as its ``rollout_func``."""

from typing import Any

from transformers import TrainerCallback

from torchloom_core.floor.errors import RolloutError
from torchloom_threadlet.adapters.transformers import TorchLoomCallback
from torchloom_threadlet.rollouts.source import RolloutSource


class QueuedRollouts(TrainerCallback):  # type: ignore[misc]
    """The ``rollout_func`` of a GRPOTrainer, and a callback that publishes its weights.

    A rollout worker puts the completions of one prompt, as many as ``num_generations``: lists
    ``prompt_ids``, ``completion_ids`` and ``logprobs``, an entry a completion. Other lists in the
    batch become arguments of the reward functions, whose ``prompts`` are those of the Trainer's
    own data set, not those of the rollouts.

    Parameters
    ----------
    address : str, optional
        The queue's ``host:port``, else ``TORCHLOOM_ROLLOUT_QUEUE``.
    max_staleness : int
        How many versions older than the newest weights a batch may be.
    timeout_s : float
        How long to wait for batches, or for a queue that is gone, in seconds.

    Notes
    -----
    Pass it twice, before the callback that attaches the Trainer::

        rollouts = QueuedRollouts()
        GRPOTrainer(model, rollout_func=rollouts, callbacks=[rollouts, TorchLoomCallback()])
    """

    def __init__(
        self, address: str | None = None, *, max_staleness: int = 4, timeout_s: float = 600.0
    ) -> None:
        self._address, self._max_staleness, self._timeout_s = address, max_staleness, timeout_s
        self._source: RolloutSource | None = None
        self._torchloom: TorchLoomCallback | None = None

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        """Return completions for a step, as many as there are prompts.

        Raises
        ------
        RolloutError
            If none come in time, or they do not make up a step.
        """
        source, found = self._source or self._begin(trainer), dict[str, list[Any]]()
        while (count := len(found.get("completion_ids", ()))) < len(prompts):
            (rollout,) = source.take()
            for name, values in rollout.batch.items():
                found.setdefault(name, []).extend(values)
        if count > len(prompts):
            raise RolloutError(
                f"need rollouts that make up a step of {len(prompts)} completions, were {count}: "
                "put num_generations completions at a time"
            )
        return found

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Publish the weights, and have the queue's metrics reported with the step."""
        source = self._source
        if source is None:
            return
        if state.is_world_process_zero:
            source.publish(parts["model"].state_dict())
        if self._torchloom is not None:
            self._torchloom.on_log(args, state, control, logs=source.metrics())

    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """End the connection."""
        if self._source is not None:
            self._source.close()
            self._source = None

    def _begin(self, trainer: Any) -> RolloutSource:
        callbacks = trainer.callback_handler.callbacks
        found = (each for each in callbacks if isinstance(each, TorchLoomCallback))
        self._torchloom = torchloom = next(found, None)
        loom = torchloom.loom if torchloom is not None else None
        self._source = source = RolloutSource(
            self._address, loom=loom, max_staleness=self._max_staleness, timeout_s=self._timeout_s
        )
        if trainer.is_world_process_zero():
            source.publish(trainer.accelerator.unwrap_model(trainer.model).state_dict())
        return source
