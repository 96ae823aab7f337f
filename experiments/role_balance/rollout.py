"""A rollout worker: a rollout takes a device so long, for which it sleeps."""

import time

import torch

from experiments.role_balance.settings import GENERATE_S, setting
from torchloom_threadlet import attach
from torchloom_threadlet.rollouts import RolloutSink


def main() -> None:
    torch.set_num_threads(1)
    loom = attach()
    sink = RolloutSink(loom=loom)
    going = True
    while going:
        sink.newer_weights()
        positions = sink.positions(1)
        time.sleep(float(setting(GENERATE_S)))
        rows = torch.randn(8, 16, generator=torch.Generator().manual_seed(positions[0]))
        sink.put({"rows": rows.tolist()}, positions)
        going = loom.step(**sink.metrics())


if __name__ == "__main__":
    main()
