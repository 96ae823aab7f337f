"""torchLoom's command line, with a lighthouse that dies of SIGUSR2 in the midst of its answers."""

import asyncio
import os
import signal
from types import FrameType
from typing import Any

from torchloom_core.cli import main
from torchloom_core.live.lighthouse.service import Service

_GOES_OUT_S = 0.05
"""By then an answer has left the process."""

_struck: set[int] = set()
_answer = Service._answer


def _note(number: int, _: FrameType | None) -> None:
    _struck.add(number)


def _answer_one(service: Service, quorum: Any, winners: dict[str, Any]) -> None:
    if not _struck or len(winners) < 2:
        _answer(service, quorum, winners)
        return
    _answer(service, quorum, dict([winners.popitem()]))
    loop = asyncio.get_running_loop()
    loop.call_later(_GOES_OUT_S, os.kill, os.getpid(), signal.SIGKILL)


Service._answer = _answer_one  # type: ignore[method-assign]

if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, _note)
    main()
