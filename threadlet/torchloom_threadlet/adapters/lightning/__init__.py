"""PyTorch Lightning: one callback, ``Trainer(callbacks=[TorchLoomCallback()])``."""

from torchloom_threadlet.adapters.framework import require

require("lightning", "2.6", "lightning", "pytorch-lightning")

from torchloom_threadlet.adapters.lightning.callback import TorchLoomCallback  # noqa: E402

__all__ = ["TorchLoomCallback"]
