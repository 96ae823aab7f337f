"""Find training data that cannot resume in mid-epoch, at the start and not after a failure."""

from collections.abc import Iterable
from typing import Any


def problem_of(loaders: Iterable[Any]) -> str:
    """Return why a restart in mid-epoch would train on other batches, in one line; "" if not."""
    for loader in loaders:
        if not hasattr(loader, "load_state_dict"):
            return (
                f"train_dataloader: a {type(loader).__name__} cannot resume in mid-epoch: after a "
                "restart its first batches are trained on again and its last ones never; use "
                "torchdata.stateful_dataloader.StatefulDataLoader"
            )
        if type(getattr(loader, "sampler", None)).__name__ == "DistributedSamplerWrapper":
            return (
                "train_dataloader: Lightning's own sampler resumes with another order of the "
                "data: give the loader a DistributedSampler, and set "
                "Trainer(use_distributed_sampler=False)"
            )
    return ""
