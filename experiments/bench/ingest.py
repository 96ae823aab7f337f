"""Weaver ingest, wire to FleetView, against a bare subscriber that only decodes."""

import shutil

from figure import Figure, medians
from fleet import names
from ingest_profile import stages_us
from scene import actor, running_broker

SAMPLES = 20


async def measure(repeats: int, *, tiny: bool) -> list[Figure]:
    """Let both take in the same batches from the same broker, in turns."""
    workers, rounds = (20, 5) if tiny else (1000, 40)
    rows = []
    async with running_broker() as (broker, folder):
        creds = broker.credentials.weaver_creds
        for repeat in range(repeats):
            sides = ("bare", "weaver") if repeat % 2 == 0 else ("weaver", "bare")
            took = {}
            for side in sides:
                async with actor(
                    "ingest_subscriber.py", side, broker.url, creds, folder, workers, rounds
                ) as subscriber:
                    await subscriber.hear()
                    async with actor(
                        "ingest_publisher.py", side, broker.url, creds, workers, rounds, SAMPLES
                    ) as publisher:
                        took[side] = await subscriber.hear()
                        await publisher.ended()
                    await subscriber.ended()
            # Else the disk would still be busy with this one's record in the next one's time.
            shutil.rmtree(folder / "trajectory", ignore_errors=True)  # it may just be sealed
            rows.append(_row(took["bare"], took["weaver"]))
    numbers = medians(rows)
    ratios = [row["weaver_messages_per_s"] / row["bare_messages_per_s"] for row in rows]
    numbers |= await stages_us(names(workers), rounds, SAMPLES)
    numbers["cpu_ratio"] = numbers["bare_cpu_us_per_message"] / numbers["weaver_cpu_us_per_message"]
    what = "Weaver ingest, wire to FleetView / bare nats-py callback that decodes"
    return [Figure("ingest", what, 0.8, "at least", ratios, numbers)]


def _row(bare: dict[str, float], weaver: dict[str, float]) -> dict[str, float]:
    row = {}
    for side, took in (("bare", bare), ("weaver", weaver)):
        messages = took["messages"]
        row[f"{side}_messages_per_s"] = messages / took["wall_s"]
        row[f"{side}_samples_per_s"] = messages * SAMPLES / took["wall_s"]
        row[f"{side}_loop_us_per_message"] = 1e6 * took["loop_s"] / messages
        row[f"{side}_cpu_us_per_message"] = 1e6 * took["cpu_s"] / messages
        row[f"{side}_cpu_share"] = took["cpu_s"] / took["wall_s"]
    return row
