"""One run of a study, as it is sent to a worker process, and its cache key."""

from pathlib import Path

import msgspec

from torchloom_core.lab.evaluate.goodput.arms import Arm
from torchloom_core.lab.evaluate.goodput.episode import opened
from torchloom_core.lab.evaluate.goodput.run import Setting, simulate
from torchloom_core.lab.evaluate.results import RunResult
from torchloom_core.lab.evaluate.run_cache import key_of


class StudyTask(msgspec.Struct, frozen=True, kw_only=True):
    """One run to play."""

    setting: Setting
    arm: Arm
    seed: int

    @property
    def arm_name(self) -> str:
        """The name of the arm."""
        return self.arm.name

    @property
    def key(self) -> str:
        """The hash of trace, job, costs, safety limits, arm, seed, models and code."""
        setting, config = self.setting, self.setting.config
        parts = [
            opened(Path(setting.trace))[0].digest(),
            [config.run, config.weaver, config.costs, config.arbiter, config.evaluate],
            [setting.unknown, setting.from_ns, setting.horizon_s],
            msgspec.structs.replace(
                self.arm, name="", what="", kind="candidate", needs_forecast=False
            ),
            self.seed,
        ]
        return key_of(parts, self.arm.predictors)

    def play(self) -> RunResult:
        """Play it."""
        return simulate(self.setting, self.arm, self.seed)
