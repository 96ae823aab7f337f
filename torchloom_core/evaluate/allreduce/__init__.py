"""What policies are worth to a run that waits for its network: arms played on a bandwidth trace."""

from torchloom_core.evaluate.allreduce.arms import candidate
from torchloom_core.evaluate.allreduce.run import Setting
from torchloom_core.evaluate.allreduce.study import run_study

__all__ = ["Setting", "candidate", "run_study"]
