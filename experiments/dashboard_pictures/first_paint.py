"""Measure what the dashboard's page loads, and how soon it paints.

``python experiments/dashboard_pictures/first_paint.py`` serves the page of a run with 64 workers
on loopback, opens it in Chromium several times, and prints the bytes on disk, the bytes sent
(gzip) and the first contentful paint.
"""

import argparse
import asyncio
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from playwright.async_api import async_playwright

from torchloom_core.config.services import Dashboard
from torchloom_core.floor.web_server import served, url_of
from torchloom_core.live.dashboard import app, serve
from torchloom_core.live.dashboard.auth import SessionKeys
from torchloom_core.live.dashboard.run_state import RunState
from torchloom_core.wire.messages import Hello

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
WORKERS = 64
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
SENT = "performance.getEntries().reduce((sum, one) => sum + (one.transferSize ?? 0), 0)"


async def measure(rounds: int) -> tuple[float, list[float]]:
    """Return the bytes that a first visit is sent, and the first paint of each round, ms."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        sys.exit("need chromium: apt install chromium")
    with tempfile.TemporaryDirectory() as folder:
        keys, run = SessionKeys(Path(folder)), RunState(1e9, "", "run")
        for number in range(WORKERS):
            name = f"g{number}"
            run.board.add(
                Hello(run="run", worker=f"{name}-0", incarnation=1, group=name, rank=0, node=name),
                run.now_s,
            )
        with serve._listener(Dashboard(port=0)) as found:
            hosts = serve.hosts_of("127.0.0.1", ())
            made = app.application(
                run, None, keys, "run", hosts, secure=False, on_entry=lambda: None
            )
            async with served(made, found, **serve._OPTIONS), async_playwright() as playwright:
                browser = await playwright.chromium.launch(executable_path=path, args=FLAGS)
                paints, sent = [], 0.0
                for _ in range(rounds):
                    context = await browser.new_context(viewport={"width": 1440, "height": 900})
                    page = await context.new_page()
                    await page.goto(f"{url_of(found, secure=False)}/?token={keys.token}")
                    await page.get_by_role("tab", name="Fleet").wait_for()
                    await page.wait_for_timeout(500)
                    paints.append(float(await page.evaluate(PAINT)))
                    sent = float(await page.evaluate(SENT))
                    await context.close()
                await browser.close()
    return sent, paints


def main() -> None:
    """Print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    sent, paints = asyncio.run(measure(options.rounds))
    kinds = {".html", ".js", ".css"}
    own = [path for path in app.PAGE.glob("*.*") if path.suffix in kinds]
    print(f"own files {sum(path.stat().st_size for path in own):,} bytes in {len(own)}")
    print(f"sent at a first visit {sent:,.0f} bytes")
    print(
        f"first contentful paint {statistics.median(paints):.0f} ms, the median of {len(paints)}"
        f" (smallest {min(paints):.0f}, largest {max(paints):.0f})"
    )


if __name__ == "__main__":
    main()
