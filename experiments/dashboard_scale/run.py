"""The dashboard with thousands of ranks and many pages: what it costs, and how soon it shows.

``python experiments/dashboard_scale/run.py --workers 10000 --pages 20``; the ranks are one process
that sends eight metrics a second for each, with a real Weaver and its broker on the same machine.
With ``--browser`` a real Chromium is shown the map of them, too.
"""

import argparse
import asyncio
import json
import random
import struct
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import psutil
from nats.aio.client import Client
from rich.console import Console
from rich.table import Table
from websockets.asyncio.client import ClientConnection, connect

from experiments.dashboard_scale.chromium import Chromium, cpu_s
from experiments.many_workers.run import INCARNATION, RUN, Person, Weaver, Workers, until
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import encode_telemetry
from torchloom_core.wire.messages import Telemetry

METRICS = (*(f"metric_{number}" for number in range(7)), "loss")
BEAT_S = 1.0
AT_ONCE = 250
MARK = 1e6
"""A value far from all others: paints the highest byte."""

ON_REQUEST = "plotly-gl3d.min.js"
"""Loaded by a browser only for a landscape in 3-D."""

HEADER = struct.Struct("<BBHIdd")
STATES, VALUES = 0, 1

console = Console(width=None if sys.stdout.isatty() else 110)


class Talkers(Workers):
    """Workers that send eight metrics a second each, spread over the second."""

    def __init__(self, client: Client, count: int, seed: int) -> None:
        super().__init__(client, count)
        self._rng = np.random.default_rng(seed)
        self.marked = ""
        self.marked_s = 0.0

    @property
    def beats(self) -> int:
        """Number of complete rounds of messages."""
        return self._beats

    async def beat(self) -> None:
        """Send the metrics of all, forever."""
        names = list(self._value)
        while True:
            began = time.monotonic()
            table = self._rng.normal(10.0, 1.0, (len(names), len(METRICS)))
            now = struct.pack("<q", time.time_ns())
            for number, worker in enumerate(names):
                row = table[number]
                if worker == self.marked:
                    row[-1] = MARK
                    self.marked_s = self.marked_s or time.monotonic()
                batch = Telemetry(
                    run=RUN,
                    worker=worker,
                    incarnation=INCARNATION,
                    seq=self._beats,
                    state="training",
                    step=self._beats,
                    progress_age_s=0.0,
                    metrics=METRICS,
                    ts_ns=now,
                    values=row.tobytes(),
                )
                await self._client.publish(
                    subjects.telemetry(RUN, worker, INCARNATION), encode_telemetry(batch)
                )
                if number % AT_ONCE == 0:
                    due = began + BEAT_S * number / len(names)
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
            self._beats += 1
            await asyncio.sleep(max(0.0, began + BEAT_S - time.monotonic()))


class Page:
    """One page that looks at a heat map of the loss, as the browser does."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self.places: dict[str, int] = {}
        self.values = np.zeros(0, np.uint8)
        self.bytes = 0
        self.frames = 0

    async def listen(self) -> None:
        """Read all messages, forever."""
        await self._socket.send(json.dumps({"metric": "loss", "series": ["loss"]}))
        async for message in self._socket:
            if isinstance(message, bytes):
                self._paint(message)
                continue
            message = json.loads(message)
            if "places" in message:
                first = message["places"]["first"]
                names = message["places"]["columns"][0]
                self.places |= {name: first + n for n, name in enumerate(names)}

    def _paint(self, frame: bytes) -> None:
        kind, channel, _, count, _, _ = HEADER.unpack_from(frame)
        if channel != VALUES:
            return
        self.frames += 1
        rest = np.frombuffer(frame, np.uint8, offset=HEADER.size)
        if kind == 1:
            self.values = rest.copy()
            return
        bits = -(-count // 8)
        changed = np.unpackbits(rest[:bits], bitorder="little")[:count] == 1
        self.values[changed] = rest[bits:]


class Dashboard:
    """The dashboard's process."""

    def __init__(self, folder: Path) -> None:
        self._out = folder / "dashboard.out"
        self._folder = folder
        self.cookie = ""
        self.base = ""

    async def start(self) -> None:
        """Start it, and open its link."""
        with self._out.open("w") as out, (self._folder / "dashboard.err").open("w") as err:
            # With the Weaver's own credentials, as pretended workers speak in its account.
            creds = self._folder / "state" / "broker" / "keys" / "weaver.creds"
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "torchloom_core.cli",
                "dashboard",
                "--creds",
                str(creds),
                cwd=self._folder,
                stdout=out,
                stderr=err,
            )
        link = await self._link(1)
        self.base = urlsplit(link).netloc
        head = await self._get(link.partition(self.base)[2])
        self.cookie = next(
            line.split(": ", 1)[1].partition(";")[0]
            for line in head.decode("latin-1").split("\r\n")
            if line.lower().startswith("set-cookie")
        )
        self.watched = psutil.Process(self.process.pid)
        self.link = await self._link(2)
        console.print(f"to look at it in a browser: {self.link}", soft_wrap=True)

    async def _link(self, number: int) -> str:
        """Return the link that it prints as the first, or as the second once that was used."""
        while self._out.read_text().count("token=") < number:
            if self.process.returncode is not None:
                sys.exit((self._folder / "dashboard.err").read_text()[-2000:])
            await asyncio.sleep(0.05)
        return self._out.read_text().split()[-1]

    async def _get(self, path: str, *, packed: bool = False) -> bytes:
        host, port = self.base.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        lines = [f"GET {path} HTTP/1.1", f"Host: {self.base}", "Connection: close"]
        if self.cookie:
            lines.append(f"Cookie: {self.cookie}")
        if packed:
            lines.append("Accept-Encoding: gzip")
        writer.write("\r\n".join([*lines, "", ""]).encode())
        data = await reader.read()
        writer.close()
        return data

    async def load_bytes(self) -> int:
        """Return how much a browser takes before the socket: the page and all that it names."""
        page = Path(__file__).parents[2] / "torchloom_core" / "live" / "dashboard" / "page"
        scripts = (path for path in page.rglob("*.js") if path.name != ON_REQUEST)
        paths = ["/", *(f"/page/{path.relative_to(page)}" for path in scripts)]
        paths += [f"/page/{p.relative_to(page)}" for p in page.rglob("*.css")]
        return sum([len(await self._get(path, packed=True)) for path in paths])

    def connect(self) -> "connect":
        """Return a socket to be opened."""
        return connect(
            f"ws://{self.base}/live",
            origin=f"http://{self.base}",  # type: ignore[arg-type]
            additional_headers={"Cookie": self.cookie},
            max_size=None,
            max_queue=None,
        )


async def play(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Play it once, and return the figures."""
    weaver = Weaver(folder)
    (folder / "torchloom.toml").write_text(
        "[weaver]\nstate_dir = 'state'\nshow = ['loss']\n[dashboard]\nport = 0\n"
    )
    await weaver.start()
    connection = await weaver.connect("weaver")
    person = Person(await weaver.connect("operator"))
    talkers = Talkers(connection, options.workers, options.seed)
    await talkers.start()
    with console.status("waiting until all train"):
        await person.all_train(options.workers, 0.5)
    dashboard = Dashboard(folder)
    await dashboard.start()
    figures = {"load_kb": await dashboard.load_bytes() / 1e3}
    counters = [Counting() for _ in range(options.pages)]
    sockets = [await dashboard.connect() for _ in range(options.pages)]
    for socket, counter in zip(sockets, counters, strict=True):
        counter.watch(socket)
    pages = [Page(socket) for socket in sockets]
    frozen = pages[1:2] if options.freeze else []
    listening = [asyncio.create_task(page.listen()) for page in pages if page not in frozen]
    first, counter = pages[0], counters[0]
    with console.status("waiting until a page has all workers"):
        began = time.monotonic()
        await until(lambda: len(first.places) >= options.workers and len(first.values) > 0, 0.05)
        figures["first_map_s"] = time.monotonic() - began
        figures["first_map_kb"] = counter.bytes / 1e3
    shown = AsyncExitStack()
    chromium = None
    if options.browser:
        with console.status("waiting until a browser has painted the map"):
            chromium = await shown.enter_async_context(Chromium.at(dashboard.link))
        figures |= {
            "browser_first_paint_s": chromium.first_paint_s,
            "browser_map_s": chromium.map_s,
        }
    await asyncio.sleep(5.0)
    browser_rss: list[int] = []
    browser_cpu = chromium.cpu_s() if chromium else 0.0
    cpu, rss, bytes_then, beats, then = (
        cpu_s(dashboard.watched),
        [dashboard.watched.memory_info().rss],
        counter.bytes,
        talkers.beats,
        time.monotonic(),
    )
    delays = []
    rng = random.Random(options.seed)
    names = list(first.places)
    with console.status(f"watching for {options.seconds:g} s"):
        while time.monotonic() - then < options.seconds:
            delays.append(await change(talkers, first, rng.choice(names)))
            rss.append(dashboard.watched.memory_info().rss)
            browser_rss += [chromium.rss()] if chromium else []
    spent_s = time.monotonic() - then
    figures |= {
        "updates_per_s": (talkers.beats - beats) / spent_s,
        "dashboard_core_percent": 100 * (cpu_s(dashboard.watched) - cpu) / spent_s,
        "page_kb_per_s": (counter.bytes - bytes_then) / 1e3 / spent_s,
        "change_p50_s": float(np.percentile(delays, 50)),
        "change_p95_s": float(np.percentile(delays, 95)),
        "changes": len(delays),
        "rss_mb": rss[-1] / 1e6,
        "rss_mb_per_hour": _slope(rss, spent_s) * 3600,
    }
    if chromium:
        figures |= {
            "browser_core_percent": 100 * (chromium.cpu_s() - browser_cpu) / spent_s,
            "browser_rss_mb": browser_rss[-1] / 1e6,
            "browser_rss_mb_per_hour": _slope(browser_rss, spent_s) * 3600,
        }
    await shown.aclose()
    for task in (*listening, talkers.beating):
        task.cancel()
    dashboard.process.terminate()
    await dashboard.process.wait()
    figures["weaver_status"] = weaver.end()
    return figures


class Counting:
    """Counts what a socket's transport is given, as it was on the wire."""

    def __init__(self) -> None:
        self.bytes = 0

    def watch(self, socket: ClientConnection) -> None:
        """Count from now on."""
        received = socket.data_received

        def counted(data: bytes) -> None:
            self.bytes += len(data)
            received(data)

        socket.data_received = counted  # type: ignore[method-assign]


async def change(talkers: Talkers, page: Page, worker: str) -> float:
    """Return the delay from a worker's new value to the page."""
    row = page.places[worker]
    talkers.marked_s, talkers.marked = 0.0, worker
    await until(lambda: bool(talkers.marked_s) and page.values[row] == 255, 0.005)
    delay = time.monotonic() - talkers.marked_s
    talkers.marked = ""
    await until(lambda: page.values[row] != 255, 0.02)
    return delay


def _slope(values: list[int], seconds: float) -> float:
    """Return megabytes a second, by least squares over the second half."""
    half = np.array(values[len(values) // 2 :]) / 1e6
    if len(half) < 3:
        return 0.0
    return float(np.polyfit(np.linspace(seconds / 2, seconds, len(half)), half, 1)[0])


def main() -> None:
    """Play it in a folder that goes away."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=10_000, help="how many [10000]")
    parser.add_argument("--pages", type=int, default=1, help="how many look at it [1]")
    parser.add_argument("--freeze", action="store_true", help="one of them reads nothing")
    parser.add_argument("--browser", action="store_true", help="and a real Chromium")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long [60]")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        figures = asyncio.run(play(Path(folder), options))
    table = Table("figure", "value", title=f"{options.workers:,} ranks, {options.pages} pages")
    for name, value in figures.items():
        table.add_row(name, f"{value:,.3g}")
    console.print(table)


if __name__ == "__main__":
    main()
