"""The arms of a study on a bandwidth trace: ways to choose the allreduce mode."""

from collections.abc import Iterable
from typing import Any

import msgspec

from torchloom_core.config.schema import Allreduce
from torchloom_core.lab.evaluate.arm_results import ArmKind

ORACLE = "oracle"


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run the job; ``mode`` is that of a static arm."""

    name: str
    kind: ArmKind
    what: str
    mode: str = ""
    policies: dict[str, dict[str, Any]] = {}
    predictors: dict[str, dict[str, Any]] = {}


def static(mode: str) -> Arm:
    """Return the arm with one mode all the time."""
    return Arm(name=f"static {mode}", kind="baseline", what=f"mode {mode} all the time", mode=mode)


def candidate(
    name: str,
    what: str,
    policies: dict[str, dict[str, Any]],
    predictors: dict[str, dict[str, Any]],
) -> Arm:
    """Return an arm under test."""
    return Arm(name=name, kind="candidate", what=what, policies=policies, predictors=predictors)


def arms_of(job: Allreduce, candidates: Iterable[Arm]) -> list[Arm]:
    """Return all arms: the static modes of the config, the oracle, and the candidates."""
    oracle = Arm(
        name=ORACLE,
        kind="oracle",
        what="each step in the mode with the most progress per second, at no cost",
    )
    return [*map(static, job.modes), oracle, *candidates]
