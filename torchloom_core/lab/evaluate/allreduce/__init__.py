"""Play arms on a bandwidth trace, for runs whose step time depends on the network."""

from torchloom_core.lab.evaluate.allreduce.run import Setting
from torchloom_core.lab.evaluate.allreduce.study import run_study

__all__ = ["Setting", "run_study"]
