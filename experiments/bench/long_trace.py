"""Tick policies over a trace of telemetry: memory and time at two lengths."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from figure import Figure, medians
from scene import actor

from torchloom_core.lab.trace import Parameters, synthesize

_WATCH = Path(__file__).with_name("watch.py")
_NODES = 1000
_DAYS = (0.25, 1.0)
_INTERVAL_S = 15.0


async def measure(repeats: int, *, tiny: bool) -> list[Figure]:
    """Watch a short and a long trace, each in a process of its own, in turns."""
    nodes = 4 if tiny else _NODES
    short_days, long_days = (days / 25 if tiny else days for days in _DAYS)
    with tempfile.TemporaryDirectory(prefix="torchloom-bench-") as folder:
        short = _trace(Path(folder) / "short.tltrace", nodes, short_days)
        long = _trace(Path(folder) / "long.tltrace", nodes, long_days)
        rows = [_row(await _watch(short), await _watch(long)) for _ in range(repeats)]
    numbers = medians(rows)
    shape = f"{nodes:,} nodes x 4 metrics at 15 s, {long_days:g} / {short_days:g} days"
    return [
        Figure(
            "memory",
            f"peak RSS of tick policies over a trace, {shape}",
            1.2,
            "at most",
            [row["long_peak_rss_mib"] / row["short_peak_rss_mib"] for row in rows],
            {name: value for name, value in numbers.items() if name.endswith("_mib")},
        ),
        Figure(
            "linear",
            f"CPU time a node-day of the same, {shape}",
            1.25,
            "at most",
            [row["long_us_a_node_day"] / row["short_us_a_node_day"] for row in rows],
            {name: value for name, value in numbers.items() if name.endswith("_day")},
        ),
    ]


def _trace(path: Path, nodes: int, days: float) -> Path:
    synthesize(path, Parameters(nodes=nodes, days=days, interval_s=_INTERVAL_S))
    return path


async def _watch(trace: Path) -> Mapping[str, float]:
    async with actor(str(_WATCH), trace, "--tick-s", _INTERVAL_S) as watcher:
        took = await watcher.hear()
        await watcher.ended()
    return took


def _row(short: Mapping[str, float], long: Mapping[str, float]) -> dict[str, float]:
    return {
        f"{name}_{what}": value
        for name, took in (("short", short), ("long", long))
        for what, value in (
            ("peak_rss_mib", took["peak_rss_mib"]),
            ("us_a_node_day", 1e6 * took["cpu_s"] / (took["nodes"] * took["days"])),
        )
    }
