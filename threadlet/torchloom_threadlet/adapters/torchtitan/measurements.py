"""The measurements of a torchtitan trainer: its spans, its logged metrics and its throughput."""

import logging
import time
from collections.abc import Callable
from typing import Any

from torchtitan.distributed import utils

from torchloom_threadlet.adapters.replaced import replaced

_LOGGER = "torchtitan.structured_logger"
_END = "_end"
_SPANS = {"step": "titan_step_s"}
_WANTED = {"step", "fwd_bwd", "optim", "fetching_batch", "gc_collect", "collect_dist_metrics"}


class Spans(logging.Handler):
    """Adds up torchtitan's spans of a step, in seconds, beside its own handlers."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Take the end of a span; its value is in milliseconds."""
        kind = getattr(record, "log_type_name", None) or ""
        name, value = kind.removesuffix(_END), getattr(record, "value", None)
        if name != kind and name in _WANTED and value is not None:
            name = _SPANS.get(name, f"{name}_s")
            self.seconds[name] = self.seconds.get(name, 0.0) + value / 1e3


class Measurements:
    """What a step of one trainer took, and what torchtitan logged at it."""

    def __init__(self, trainer: Any) -> None:
        self._trainer, self._spans = trainer, Spans()
        self._logged: dict[str, float] = {}
        self._tokens, self._since_s = 0, 0.0
        self._undo: tuple[Callable[[], None], ...] = ()

    def start(self, note_norm: Callable[[Any], None]) -> None:
        """Listen from now on; ``note_norm`` gets the norm of each step's gradients."""
        trainer = self._trainer
        logging.getLogger(_LOGGER).addHandler(self._spans)
        log = trainer.metrics_processor.log

        def logged(step: int, loss: float, max_loss: float, norm: float, **more: Any) -> None:
            self._logged = {"loss": loss, "max_loss": max_loss, "grad_norm": norm}
            log(step, loss, max_loss, norm, **more)

        clip = utils.clip_grad_norm_

        def clipped(*arguments: Any, **named: Any) -> Any:
            norm = clip(*arguments, **named)
            note_norm(norm)
            return norm

        self._undo = (
            replaced(trainer.metrics_processor, "log", logged),
            replaced(utils, "clip_grad_norm_", clipped),
        )
        self._tokens, self._since_s = trainer.ntokens_seen, time.perf_counter()

    def end(self) -> None:
        """Leave the trainer as it was."""
        logging.getLogger(_LOGGER).removeHandler(self._spans)
        for undo in self._undo:
            undo()

    def take(self) -> dict[str, float]:
        """Return the metrics of the step that is over."""
        now_s, tokens = time.perf_counter(), self._trainer.ntokens_seen - self._tokens
        rate = tokens / max(now_s - self._since_s, 1e-9)
        found = {"tokens_per_s": rate, **self._logged, **self._spans.seconds}
        processor, ranks = self._trainer.metrics_processor, self._trainer.parallel_dims
        if not processor.has_quantization:  # the peak is that of bf16
            found["flops"] = processor.num_flops_per_token * tokens / (ranks.tp * ranks.pp)
        self._tokens, self._since_s = self._trainer.ntokens_seen, now_s
        self._logged, self._spans.seconds = {}, {}
        return found
