"""Granted actions and their progress: plans, commands in flight, and past grants."""

from collections.abc import Iterable
from typing import Literal

import msgspec

from torchloom_core.wire.actions import Action, Guard
from torchloom_core.wire.commands import Command
from torchloom_core.wire.limits import KnobValues
from torchloom_core.wire.operations import Operation
from torchloom_core.wire.placement import TRAINER

WITHDRAWN = "withdrawn"
"""The status of a withdrawn command, until it is known whether its worker got it."""

ACTIONS_STOPPED = "actions were stopped"
"""The reason of plans that the kill switch called off."""


class Flight(msgspec.Struct, frozen=True, kw_only=True):
    """One command in flight, and its last status."""

    command: Command
    status: str


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One operation for several workers; ``incarnations`` are pairs of worker and incarnation."""

    operation: Operation
    incarnations: tuple[tuple[str, int], ...]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A granted action being carried out, in stages of commands.

    The plan does not have the status of each command, or it would be stored again with each ack:
    a command of the present stage that is neither in flight nor missed was applied.

    Attributes
    ----------
    stages : tuple of Stage
        The stages that are not issued yet; each waits for the one before.
    await_training : tuple of str
        Workers that must train before the second stage is issued.
    commands : tuple of str
        Ids of the present stage.
    applied : int
        How many commands of the earlier stages were applied.
    missed : dict of str to str
        The first commands that were not applied, each with its final status and the reason.
    missed_count, refused_count : int
        How many were not applied in all, and how many of these were rejected.
    change : int
        The number of the fenced change; 0: each worker applies it by itself.
    role : str
        The role whose ranks make the fenced change; empty: all of the run.
    fate : str
        The state of a fenced change: ``offered``; ``refused`` by a rank, or called off;
        ``withdrawn`` from all ranks after that; ``failed`` on a rank and rolled back on all.
    landed : tuple of int
        The smallest and largest step at which ranks applied it; empty: not yet.
    called_off : str
        The reason why no further stage is issued; the plan ends once all its commands have. Empty:
        not called off.
    """

    verdict: str
    policy: str
    action: Action
    started_ns: int
    deadline_ns: int
    stages: tuple[Stage, ...]
    await_training: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    applied: int = 0
    missed: dict[str, str] = {}
    missed_count: int = 0
    refused_count: int = 0
    change: int = 0
    role: str = ""
    fate: Literal["offered", "refused", "withdrawn", "failed"] = "offered"
    landed: tuple[int, ...] = ()
    called_off: str = ""


class Watch(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was applied, and the state of its guard.

    Attributes
    ----------
    before : dict
        The earlier values of its knobs, for a rollback.
    upon : tuple of str
        Earlier verdicts that were still watched then, and are rolled back with it.
    level, noise : float
        The level and noise of the metric before the change; noise 0: it cannot be judged.
    step : int
        The run's step then; -1: unknown.
    since_ns : int
        When it was applied; 0: not yet.
    hurt : str
        How the metric got worse; empty: it did not so far.
    tries, tried_ns : int
        How many rollbacks were tried, and when the last one.
    role : str
        The role whose ranks made it, and whose metric is watched.
    """

    verdict: str
    guard: Guard
    before: KnobValues
    upon: tuple[str, ...] = ()
    level: float = 0.0
    noise: float = 0.0
    step: int = -1
    since_ns: int = 0
    hurt: str = ""
    tries: int = 0
    tried_ns: int = 0
    role: str = TRAINER


def called_off(plan: Plan, why: str) -> Plan:
    """Return the plan without further stages, since actions were stopped.

    A fenced change that was offered may still be applied: the ranks may just have agreed.
    """
    if not plan.change or plan.stages:
        return msgspec.structs.replace(plan, called_off=plan.called_off or why)
    if plan.fate != "offered":
        return plan
    return msgspec.structs.replace(plan, fate="refused", missed={"": why})


def offered_to(plan: Plan, stage: Stage) -> Plan:
    """Return the plan with this first stage, and the later ones for the same workers."""
    later = (
        msgspec.structs.replace(one, incarnations=stage.incarnations) for one in plan.stages[1:]
    )
    return msgspec.structs.replace(plan, stages=(stage, *later))


def offered_to_more(plan: Plan, stage: Stage, commands: Iterable[str]) -> Plan:
    """Return the plan whose present stage was sent to more workers, which get the later ones."""
    later = tuple(
        msgspec.structs.replace(one, incarnations=(*one.incarnations, *stage.incarnations))
        for one in plan.stages
    )
    return msgspec.structs.replace(plan, commands=(*plan.commands, *commands), stages=later)


def begun_by(plan: Plan, now_ns: int) -> Plan:
    """Return a plan whose start, by an earlier Weaver's clock, is in the future, moved to now."""
    ahead_ns = max(0, plan.started_ns - now_ns)
    return msgspec.structs.replace(
        plan, started_ns=plan.started_ns - ahead_ns, deadline_ns=plan.deadline_ns - ahead_ns
    )


def missed_text(plan: Plan) -> str:
    """Return the commands that were not applied, each with the reason."""
    text = ", ".join(f"{command_id} {why}" for command_id, why in plan.missed.items())
    more = plan.missed_count - len(plan.missed)
    return f"{text} and {more} more" if more else text


def workers_text(plan: Plan) -> str:
    """Return how many workers applied the plan's last stage."""
    count = len(plan.commands) - plan.missed_count
    return "1 worker" if count == 1 else f"{count} workers"


def landed_text(plan: Plan) -> str:
    """Return the step of a fenced change, such as `` at step 120``, or an empty string."""
    if not plan.landed:
        return ""
    least, largest = plan.landed
    if least != largest:
        return f" at steps {least} to {largest}"
    return f" at step {least}" if least >= 0 else ""


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """The kill switch is on."""


class Granted(msgspec.Struct, frozen=True, kw_only=True):
    """A past grant, for cooldowns, rate limits, budgets and the circuit breaker."""

    verdict: str
    target: str
    action: str
    ts_ns: int
    cost_gpu_s: float
    failed: bool = False
