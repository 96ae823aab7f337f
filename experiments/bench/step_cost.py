"""What ``loom.step`` costs the training thread, with its link, its sidecar and a broker at work."""

from figure import Figure, medians
from scene import Arrivals, actor, open_bus, running_broker, write_join_file


async def measure(repeats: int, *, tiny: bool) -> list[Figure]:
    """Start a trainer per repeat; it measures itself once its telemetry arrives here."""
    rounds, paced_calls = (5, 50) if tiny else (1000, 3000)
    arrivals = Arrivals()
    rows: list[dict[str, float]] = []
    async with running_broker() as (broker, folder), open_bus(broker, arrivals.receive):
        join = write_join_file(broker, folder)
        for repeat in range(repeats):
            arguments = ("step_trainer.py", rounds, paced_calls)
            environment = {"TORCHLOOM_JOIN": str(join), "TORCHLOOM_RANK": str(repeat)}
            async with actor(*arguments, **environment) as trainer:
                await arrivals.until(lambda: len(arrivals.workers) > len(rows))
                trainer.go()
                rows.append(await trainer.hear())
                await trainer.ended()
    return [
        Figure(
            "step",
            "loom.step(loss=x) / deque.append(x), in the training thread",
            40,
            "at most",
            [row["step_ns"] / row["append_ns"] for row in rows],
            medians(rows),
        ),
        Figure(
            "step_tail",
            "p99 of loom.step / its own p50, a step every millisecond",
            20,
            "at most",
            [row["paced_p99_ns"] / row["paced_p50_ns"] for row in rows],
            medians(
                [
                    {"p99_ratio_without_a_pause": row["close_p99_ns"] / row["close_p50_ns"]}
                    for row in rows
                ]
            ),
        ),
    ]
