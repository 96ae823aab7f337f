"""Hugging Face transformers: one callback, ``Trainer(callbacks=[TorchLoomCallback()])``."""

from torchloom_threadlet.adapters.framework import require

require("transformers", "5.20", "transformers")

from torchloom_threadlet.adapters.transformers.callback import TorchLoomCallback  # noqa: E402
from torchloom_threadlet.adapters.transformers.newest import newest_checkpoint  # noqa: E402

__all__ = ["TorchLoomCallback", "newest_checkpoint"]
