"""Run tick policies on one trace in a separate process, and print time and memory.

``long_trace.py`` starts it, so that the peak of one trace's memory is not that of another.
"""

import argparse
import json
import time
from pathlib import Path

from peak_memory import peak_rss_bytes

from torchloom_core.config.loading import convert
from torchloom_core.config.schema import Config
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.needs import windows_s
from torchloom_core.lab.activation.activation import activate
from torchloom_core.lab.activation.discovery import discover
from torchloom_core.lab.trace import Bundle, Feed
from torchloom_core.live.dispatch.policy_guard import RecordedGuard
from torchloom_core.live.kernel.kernel import Kernel
from torchloom_core.live.kernel.plugins.host import ActivePlugins
from torchloom_core.wire.decisions import Proposed
from torchloom_core.wire.events import Tick

DAY_S = 86_400.0
_LEVELS = {
    "gpu_temp_celsius": 85.0,
    "gpu_power_watts": 900.0,
    "gpu_ecc_corrected_total": 1e6,
    "nic_errors_per_min": 50.0,
}
"""Metric to the level above which a rule alerts."""


def main() -> None:
    """Watch the trace and print one line of JSON."""
    parser = argparse.ArgumentParser(description="Watch a trace; print time and peak memory.")
    parser.add_argument("trace", type=Path)
    parser.add_argument("--tick-s", type=float, default=15.0, help="seconds between ticks [15]")
    parser.add_argument("--days", type=float, help="only its first days [all]")
    options = parser.parse_args()
    print(json.dumps(watch(Bundle.open(options.trace), options.tick_s, options.days)))


def watch(bundle: Bundle, tick_s: float, days: float | None = None) -> dict[str, float]:
    """Feed a trace to a kernel with tick policies; return what it took.

    ``cpu_s`` is CPU time of all threads without the imports, ``peak_rss_mib`` includes those.
    """
    manifest = bundle.manifest
    end_ns = manifest.end_ns
    if days is not None:
        end_ns = min(end_ns, manifest.start_ns + round(days * DAY_S * SECOND_NS))
    config, plugins = watching(tick_s)
    started, cpu = time.perf_counter(), time.process_time()
    feed = Feed(
        bundle,
        tick_s=tick_s,
        repair_s=config.evaluate.repair_s,
        end_ns=end_ns,
        metrics=list(windows_s(plugins.needs)),
    )
    kernel = Kernel(config, plugins, RecordedGuard())
    proposals = 0
    for ts_ns, message in feed:
        outputs = kernel.step(message, ts_ns)
        if isinstance(message, Tick):
            proposals += sum(isinstance(output, Proposed) for output in outputs)
    return {
        "nodes": len(feed.watched.ids),
        "days": (end_ns - manifest.start_ns) / SECOND_NS / DAY_S,
        "ticks": kernel.ticks,
        "proposals": proposals,
        "cpu_s": time.process_time() - cpu,
        "wall_s": time.perf_counter() - started,
        "peak_rss_mib": peak_rss_bytes() / 2**20,
    }


def watching(tick_s: float) -> tuple[Config, ActivePlugins]:
    """Return a config, and its plugins, in which three policies look at every metric."""
    table = {
        "run": {"name": "scale"},
        "weaver": {"tick_s": tick_s, "stale_after_s": 4 * tick_s},
        "policies": {
            "thresholds": {"rules": [{"metric": m, "level": v} for m, v in _LEVELS.items()]},
            "straggler": {"metric": "gpu_power_watts"},
            "silence": {
                "metrics": list(_LEVELS),
                "heartbeat_limit_s": 4 * tick_s,
                "metric_limit_s": 4 * tick_s,
            },
        },
    }
    config = convert(table, Config, "scale")
    return config, activate(config, discover(), "scale")


if __name__ == "__main__":
    main()
