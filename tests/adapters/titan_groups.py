"""torchtitan's torchft trainer for the tests: one replica group of the debug model."""

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.adapters.titan_trainer import Journal, reduced, write_tokenizer

# isort: split
from torchtitan.experiments.torchft.llama3.config_registry import llama3_torchft_debugmodel
from torchtitan.experiments.torchft.trainer import FaultTolerantTrainer
from torchtitan.train import main


class GroupTrainer(Journal, FaultTolerantTrainer):
    """Writes each step before its boundary."""

    @dataclass(kw_only=True, slots=True)
    class Config(FaultTolerantTrainer.Config):
        pass

    def written(self):
        manager = self.ft_manager.manager
        local = (
            part.detach().to_local().double().sum() for part in self.model_parts[0].parameters()
        )
        return super().written() | {
            "quorum_step": manager.current_step(),
            "participants": manager.num_participants(),
            "weights": float(sum(local)).hex(),
        }


def debug_group():
    config = reduced(llama3_torchft_debugmodel(), GroupTrainer)
    config.profiler.enable_profiling = config.validator.enable = False
    config.checkpoint.interval = 1000
    groups = config.fault_tolerance
    groups.process_group, groups.process_group_timeout_ms = "gloo", 20_000
    groups.group_size, groups.semi_sync_method, groups.num_fragments = 2, None, 1
    return config


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--step-s", default="0.3")
    parser.add_argument("--steps", default="100000")
    parser.add_argument("--plain", action="store_true", help="not attached")
    parser.add_argument("--method", help="local_sgd or diloco; else all gradients are reduced")
    options = parser.parse_args()
    os.environ |= {"JOURNAL": str(options.journal), "STEP_S": options.step_s}
    write_tokenizer(options.journal / "tokenizer")
    module = ["--module", "torchloom_threadlet.adapters.torchtitan"]
    module += ["--config", "tests.adapters.titan_groups.debug_group"]
    if options.plain:
        module = ["--module", "tests.adapters.titan_groups", "--config", "debug_group"]
    sys.argv = ["train.py", *module, "--training.steps", options.steps]
    sys.argv += ["--fault_tolerance.replica_id", options.group]
    sys.argv += ["--lr_scheduler.total_steps", "1000"]
    if options.method:
        sys.argv += ["--fault_tolerance.semi_sync_method", options.method]
        sys.argv += ["--fault_tolerance.sync_steps", "6"]
    main()
