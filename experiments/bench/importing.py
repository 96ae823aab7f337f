"""``torchloom trace import csv`` of much telemetry: what memory it takes at its peak."""

import asyncio
import csv
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from random import Random

from figure import Figure, medians

_PROCESS = Path(__file__).with_name("importing_process.py")
_VALUES = 13_000_000
_METRICS = 15
_NAMED = ("metric", "value")
_VALUES_EACH = 6_500
"""Of a component."""
_LIMIT_BYTES = 1.5e9
_START_S = 1_767_225_600


async def measure(repeats: int, *, tiny: bool) -> list[Figure]:
    """Import a wide and a long table of as many values, each in a process of its own."""
    values = 30_000 if tiny else _VALUES
    with tempfile.TemporaryDirectory(prefix="torchloom-bench-") as folder:
        return [await _figure(Path(folder), layout, values, repeats) for layout in ("wide", "long")]


async def _figure(folder: Path, layout: str, values: int, repeats: int) -> Figure:
    mapping, file_bytes = _tables(folder / layout, layout, values)
    rows = [await _imported(mapping) for _ in range(repeats)]
    return Figure(
        f"import_{layout}",
        f"peak RSS of importing {values:,} values of a {layout} CSV file / 1.5 GB",
        1.0,
        "at most",
        [row["peak_rss_bytes"] / _LIMIT_BYTES for row in rows],
        {
            "peak_rss_gb": medians(rows)["peak_rss_bytes"] / 1e9,
            "seconds": medians(rows)["seconds"],
            "file_gb": file_bytes / 1e9,
        },
    )


async def _imported(mapping: Path) -> Mapping[str, float]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, _PROCESS, mapping, stdout=asyncio.subprocess.PIPE
    )
    answer, _ = await process.communicate()
    if process.returncode:
        raise SystemExit(process.returncode)
    took: Mapping[str, float] = json.loads(answer)
    return took


def _tables(folder: Path, layout: str, values: int) -> tuple[Path, int]:
    """Write events, telemetry and their mapping; return the mapping and the telemetry's bytes."""
    folder.mkdir()
    (folder / "events.csv").write_text(
        f"time,component,kind\n{_START_S + 60},c0,crash\n{_START_S + 120},c1,crash\n"
    )
    file = folder / "telemetry.csv"
    random, components = Random(0), values // _VALUES_EACH
    metrics = [f"metric_{number}" for number in range(_METRICS)]
    with file.open("w", newline="") as out:
        rows = csv.writer(out)
        rows.writerow(["time", "component", *(metrics if layout == "wide" else _NAMED)])
        for number in range(-(-values // _METRICS)):
            where = [_START_S + 60 * (number // components), f"c{number % components}"]
            cells = [f"{random.random():.6g}" for _ in metrics]
            if layout == "wide":
                rows.writerow([*where, *cells])
            else:
                rows.writerows([*where, *pair] for pair in zip(metrics, cells, strict=True))
    mapping = folder / "map.toml"
    mapping.write_text(
        f'[times]\nunit = "s"\n[telemetry]\nfile = "telemetry.csv"\nlayout = "{layout}"\n'
    )
    return mapping, file.stat().st_size
