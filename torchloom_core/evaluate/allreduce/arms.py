"""The arms of a study on a bandwidth trace: every way to choose the mode of a run's allreduce."""

from collections.abc import Iterable
from typing import Any

import msgspec

from torchloom_core.config.schema import Allreduce
from torchloom_core.evaluate.arm_results import ArmKind

ORACLE = "oracle"


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run the job.

    Attributes
    ----------
    mode : str
        The one that a static arm keeps.
    policies, predictors : dict
        As in ``[policies]`` and ``[predictors]``.
    """

    name: str
    kind: ArmKind
    what: str
    mode: str = ""
    policies: dict[str, dict[str, Any]] = {}
    predictors: dict[str, dict[str, Any]] = {}


def static(mode: str) -> Arm:
    """Return the run that keeps one mode."""
    return Arm(name=f"static {mode}", kind="baseline", what=f"{mode} all the time", mode=mode)


def candidate(
    name: str,
    what: str,
    policies: dict[str, dict[str, Any]],
    predictors: dict[str, dict[str, Any]],
) -> Arm:
    """Return an arm that is tested."""
    return Arm(name=name, kind="candidate", what=what, policies=policies, predictors=predictors)


def arms_of(job: Allreduce, candidates: Iterable[Arm]) -> list[Arm]:
    """Return all arms: the modes of the config, the oracle, and what is tested."""
    oracle = Arm(
        name=ORACLE,
        kind="oracle",
        what="each step in the mode in which it makes most progress a second, at no cost",
    )
    return [*map(static, job.modes), oracle, *candidates]
