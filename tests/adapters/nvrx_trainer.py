"""A rank under NVRx's ft_launcher that sends heartbeats and sections to its monitor."""

import argparse
import json
import time
from pathlib import Path

from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

from torchloom_threadlet import attach
from torchloom_threadlet.adapters.nvrx import follow

parser = argparse.ArgumentParser()
parser.add_argument("--journal", type=Path)
journal = parser.parse_args().journal / "0.jsonl"
client, loom = RankMonitorClient(), attach()
client.init_workload_monitoring()
follow(client, loom)
follow(client, loom)  # as a cell of a notebook that runs again
going, step = True, 0
while going:
    step += 1
    client.start_section("load")
    time.sleep(0.02)
    client.end_section("load")
    client.send_heartbeat()
    going = loom.step(step)
    with journal.open("a") as file:
        print(json.dumps({"event": "step", "step": step}), file=file)
client.shutdown_workload_monitoring()
