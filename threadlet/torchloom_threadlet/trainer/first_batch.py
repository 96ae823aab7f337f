"""Times the first batch of a data loader, for the phases of a start."""

from collections.abc import Iterator
from contextlib import suppress
from types import GeneratorType
from typing import Any

from torchloom_core.wire.start_phases import DATA_LOADER
from torchloom_threadlet.trainer.start_marks import StartMarks


def mark_first_batch(loader: Any, marks: StartMarks) -> None:
    """Count the time from ``iter(loader)`` to its first batch as the phase ``data_loader``.

    The loader gets a subclass of its own class until then; where that is not possible, the time is
    counted with the first step. What cannot be iterated, or is a module, is left alone.
    """
    kind = type(loader)
    if not hasattr(kind, "__iter__") or hasattr(kind, "parameters"):
        return

    def iterate(self: Any) -> Any:
        self.__class__ = kind
        with marks.phase(DATA_LOADER):
            batches = iter(self)
        return marked(batches, marks)

    with suppress(TypeError):
        loader.__class__ = type(kind.__name__, (kind,), {"__iter__": iterate})


def marked(batches: Any, marks: StartMarks) -> Any:
    """Return an iterator whose first batch counts as the phase ``data_loader``."""
    if isinstance(batches, GeneratorType):
        return _generated(batches, marks)
    kind = type(batches)

    def first(self: Any) -> Any:
        self.__class__ = kind
        with marks.phase(DATA_LOADER):
            return next(self)

    with suppress(TypeError):
        batches.__class__ = type(kind.__name__, (kind,), {"__next__": first})
    return batches


def _generated(batches: Iterator[Any], marks: StartMarks) -> Iterator[Any]:
    with marks.phase(DATA_LOADER):
        first = next(batches, marks)
    if first is not marks:
        yield first
        yield from batches
