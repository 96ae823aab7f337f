"""Find the parts of capabilities, torchLoom's own and other packages', by their entry points."""

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import islice

from torchloom_core.floor.entry_points import entry_points
from torchloom_core.floor.plain_text import plain_line
from torchloom_core.wire.limits import FIELD_NAME, MAX_FIELDS
from torchloom_core.wire.operations import Operation
from torchloom_threadlet.capability import OperationError, SidecarPart, TrainerPart
from torchloom_threadlet.cleaning import error_line, warn_once

GROUP = "torchloom.trainer_capabilities"

_OWN = "torchloom_threadlet."
_logger = logging.getLogger(__name__)

Part = TrainerPart[Operation] | SidecarPart[Operation]


@cache
def installed_parts(level: int = logging.WARNING) -> Mapping[str, Part]:
    """Return the part of each operation by its verb; log once, at ``level``, what is left out.

    A verb that is taken twice keeps torchLoom's own part, else the first by entry point.
    """
    points = {
        (not point.value.startswith(_OWN), point.name, point.value): point
        for point in entry_points(GROUP)
    }
    found: dict[str, Part] = {}
    for (_, name, value), point in sorted(points.items()):
        try:
            for part in point.load():
                verb = _verb_of(part)
                if found.setdefault(verb, part) is not part:
                    _logger.log(level, "trainer capability %s: %s has a part already", name, verb)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - the code of anyone's package
            text = plain_line(error_line(error))
            _logger.log(level, "trainer capability %s is left out: %s: %s", name, value, text)
    return dict(islice(found.items(), MAX_FIELDS))


def offered(questions: Mapping[str, Callable[[], bool]]) -> tuple[str, ...]:
    """Return the verbs whose parts say yes; one that raises is not offered, and logged once."""
    found = []
    for verb, is_offered in questions.items():
        try:
            if is_offered():
                found.append(verb)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - the code of anyone's package
            warn_once(f"operation {verb}", f"it is not offered: {error_line(error)}")
    return tuple(found)


def verb_of(operation: Operation | type[Operation]) -> str:
    """Return the verb of an operation."""
    return str(operation.__struct_config__.tag)


def _verb_of(part: object) -> str:
    if not isinstance(part, TrainerPart | SidecarPart):
        raise TypeError(f"need a TrainerPart or a SidecarPart, was {part!r}")
    verb = verb_of(part.operation)
    if not re.match(FIELD_NAME, verb):
        raise ValueError(f"need letters, digits, '_', '-', '.' and ':' in a verb, was {verb!r}")
    return verb


def is_own(part: Part) -> bool:
    """Return whether a part comes with torchLoom."""
    return type(part).__module__.startswith(_OWN)


@contextmanager
def guarded(part: Part) -> Iterator[None]:
    """Turn what ends a process, such as SystemExit, into an OperationError.

    torchLoom's own parts call functions of the script's, which may end it.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        ends = isinstance(part, SidecarPart) and type(error).__name__ == "CancelledError"
        if is_own(part) or ends:
            raise
        raise OperationError(error_line(error)) from None
