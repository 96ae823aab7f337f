"""Run retention's passes beside the Weaver, in a process of lowest priority."""

import asyncio
import logging
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from torchloom_core.config.trajectory import Trajectory
from torchloom_core.wire.decisions import Notice

log = logging.getLogger(__name__)

_MODULE = "torchloom_core.live.trajectory.retention_pass"
_GIB = 1 << 30


class RetentionRunner:
    """A pass every ``every_s``, and at once when the disk is nearly full; none without rules."""

    def __init__(self, root: Path, rules: Trajectory | None) -> None:
        self._root = root
        self._rules = rules
        self._hurry = asyncio.Event()
        self._news: list[Notice] = []

    def hurry(self) -> None:
        """Start the next pass now."""
        self._hurry.set()

    def take_news(self) -> list[Notice]:
        """Return what people should know of the last passes."""
        news, self._news = self._news, []
        return news

    async def run(self) -> None:
        """Run passes until cancelled; a pass that is cut off is finished by the next one."""
        rules = self._rules
        while rules is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), rules.every_s)
            self._hurry.clear()
            await self._pass(rules)

    async def _pass(self, rules: Trajectory) -> None:
        settings = msgspec.json.encode(rules).decode()
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", _MODULE, str(self._root), settings),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            log.warning("retention cannot be started: %s", error.strerror)
            return
        try:
            out, err = await process.communicate()
        except asyncio.CancelledError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.communicate()
            raise
        for line in err.decode(errors="replace").splitlines()[-3:]:
            log.warning("retention: %s", line)
        if process.returncode:
            return
        steps, before, after, lacks = msgspec.json.decode(out, type=tuple[int, int, int, str])
        if steps:
            text = "retention: %d files written, the trajectory is %.2f GiB, was %.2f GiB"
            log.info(text, steps, after / _GIB, before / _GIB)
        if lacks:
            text = f"retention has nothing left to thin: the trajectory has {lacks}"
            self._news = [Notice(kind="disk", text=text)]
