"""A real Chromium that is shown the map of all ranks, and what it takes of the machine."""

import asyncio
import shutil
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psutil
from playwright.async_api import async_playwright

from experiments.many_workers.run import give_up

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
PAINTED = """() => {
  const map = document.querySelector('canvas.heatmap');
  if (!map || !map.width || !map.height) return false;
  const pixels = map.getContext('2d').getImageData(0, 0, map.width, map.height).data;
  return new Set(new Uint32Array(pixels.buffer)).size > 20;
}"""


class Chromium:
    """A real browser that is shown the map of all ranks, painted by their loss.

    Attributes
    ----------
    first_paint_s, map_s : float
        From the opening of the link until something is painted, and from that of the map's screen
        until the map is.
    """

    def __init__(self) -> None:
        self.first_paint_s = self.map_s = 0.0
        mine = psutil.Process().children(recursive=True)
        self._processes = [one for one in mine if one.name().startswith("chrom")]

    @classmethod
    @asynccontextmanager
    async def at(cls, link: str) -> "AsyncIterator[Chromium]":
        """Open a dashboard's link."""
        path = shutil.which("chromium") or shutil.which("google-chrome")
        if path is None:
            sys.exit("--browser: need chromium: apt install chromium")
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=path, args=FLAGS)
            page = await browser.new_page(viewport={"width": 1280, "height": 860})
            await page.goto(link)
            await page.get_by_text("data as of").wait_for()
            entry = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            first_paint_s = await page.evaluate(entry) / 1e3
            began = time.monotonic()
            await page.get_by_role("tab", name="Fleet").click()
            await page.get_by_label("Colour by").select_option("loss")
            while not await page.evaluate(PAINTED):
                give_up(began)
                await asyncio.sleep(0.02)
            found = cls()
            found.first_paint_s, found.map_s = first_paint_s, time.monotonic() - began
            yield found
            await browser.close()

    def cpu_s(self) -> float:
        """Return what all its processes have taken so far."""
        return sum(cpu_s(one) for one in self._processes if one.is_running())

    def rss(self) -> int:
        """Return what they have in memory, bytes; what they share counts for each."""
        return sum(one.memory_info().rss for one in self._processes if one.is_running())


def cpu_s(process: psutil.Process) -> float:
    """Return what a process has taken so far."""
    times = process.cpu_times()
    return float(times.user + times.system)
