"""Refuse a trace that contradicts itself, and say what of it nobody looks at.

A fit and an evaluation ask before they read more of it.
"""

import logging
from collections.abc import Iterable

from torchloom_core.errors import TraceError
from torchloom_core.trace.bundle.bundle import Bundle
from torchloom_core.trace.bundle.schema import EVENTS, TOPOLOGY, Row
from torchloom_core.trace.validation.rules import Rules

_log = logging.getLogger(__name__)


def say_beyond(bundle: Bundle) -> None:
    """Say which events nobody looks at, as the trace ends before them."""
    if bundle.beyond:
        _log.warning("%s", bundle.beyond)


def refuse_contradicting(bundle: Bundle) -> None:
    """Raise TraceError if two rows have one id, or an end lies before its beginning.

    What of these is meant nobody knows, and what comes out would rest on it.
    """
    rules = Rules(-(2**63), 2**63)
    rows: dict[str, Iterable[Row]] = {TOPOLOGY: bundle.topology(), EVENTS: bundle.events()}
    for file, of in rows.items():
        for fault in (fault for row in of for fault in rules.faults(row)):
            raise TraceError(
                f"{bundle.path / file}: {fault}; `torchloom trace validate` says where"
            )
