"""What was granted, and how far it is: plans, their commands in flight, and past grants."""

from typing import Literal

import msgspec

from torchloom_core.wire.actions import Action, Guard
from torchloom_core.wire.messages import Command, KnobValues, Operation

WITHDRAWN = "recalled"
"""The status of a command that was taken back, until it is known whether its worker had it."""

ACTIONS_STOPPED = "actions were stopped"
"""Why a plan was called off, by the kill switch."""


class Flight(msgspec.Struct, frozen=True, kw_only=True):
    """One command on its way, and the last that was heard of it."""

    command: Command
    status: str


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One operation for several workers; ``incarnations`` are pairs of worker and incarnation."""

    operation: Operation
    incarnations: tuple[tuple[str, int], ...] = msgspec.field(name="lives")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A granted action being carried out, in stages of commands.

    What has become of the commands of the present stage is not in here: the plan would have to
    be stored again with each ack. Those that are not in flight any more and not among the
    missed were applied.

    Attributes
    ----------
    stages : tuple of Stage
        What is still to be issued; the next stage waits for the present one.
    await_training : tuple of str
        Workers that must be seen training after the first stage, before the next.
    commands : tuple of str
        Ids of the present stage.
    applied : int
        How many commands of the stages before were applied.
    missed : dict of str to str
        The first commands that ended otherwise, each with its final status and why.
    missed_count, refused_count : int
        How many did in all, and how many of these were rejected.
    change : int
        The number under which all ranks agree to do it at one step; 0: each does it alone.
    fate : str
        Of such a change: ``offered``; ``refused``, since a rank cannot do it, or it was called
        off; ``withdrawn`` from all therefore; ``failed`` on a rank, so that all set it back.
    landed : tuple of int
        The least and the largest step at which it was done by them; empty: not yet.
    called_off : str
        Why no further stage is issued; the plan ends once all its commands have. Empty: it is not
        called off.
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
    fate: Literal["offered", "refused", "withdrawn", "failed"] = "offered"
    landed: tuple[int, ...] = ()
    called_off: str = ""


class Watch(msgspec.Struct, frozen=True, kw_only=True):
    """A change that has landed, and what is watched since.

    Attributes
    ----------
    before : dict
        What its knobs were: what they are set back to if it hurts.
    upon : tuple of str
        Earlier verdicts that were still watched as it landed, and go back with it.
    level, noise : float
        Of the metric before the change; a noise of 0: it cannot be judged.
    step : int
        How far the run was then; -1: that is not known.
    since_ns : int
        When it landed; 0: not yet.
    hurt : str
        By what it was seen to hurt; empty: not so far.
    tries, tried_ns : int
        How often it was tried since to take it back, and when last.
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


def called_off(plan: Plan, why: str) -> Plan:
    """Return the plan as it is once actions were stopped: nothing more is begun of it.

    Whether a change that was offered to all is done, the ranks say: some may just have agreed.
    """
    if not plan.change or plan.stages:
        return msgspec.structs.replace(plan, called_off=plan.called_off or why)
    if plan.fate != "offered":
        return plan
    return msgspec.structs.replace(plan, fate="refused", missed={"": why})


def begun_by(plan: Plan, now_ns: int) -> Plan:
    """Return a plan that a Weaver with a clock ahead of ours has begun as if it were begun now."""
    ahead_ns = max(0, plan.started_ns - now_ns)
    return msgspec.structs.replace(
        plan, started_ns=plan.started_ns - ahead_ns, deadline_ns=plan.deadline_ns - ahead_ns
    )


def missed_text(plan: Plan) -> str:
    """Return the commands that were not applied, each with why."""
    text = ", ".join(f"{command_id} {why}" for command_id, why in plan.missed.items())
    more = plan.missed_count - len(plan.missed)
    return f"{text} and {more} more" if more else text


def workers_text(plan: Plan) -> str:
    """Return how many workers did what the plan's last stage told them."""
    count = len(plan.commands) - plan.missed_count
    return "1 worker" if count == 1 else f"{count} workers"


def landed_text(plan: Plan) -> str:
    """Return at which step it was done, as `` at step 120``, or nothing."""
    if not plan.landed:
        return ""
    least, largest = plan.landed
    if least != largest:
        return f" at steps {least} to {largest}"
    return f" at step {least}" if least >= 0 else ""


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """The kill switch is on."""


class Granted(msgspec.Struct, frozen=True, kw_only=True):
    """A past grant, as cooldowns, rates, budgets and the breaker remember it."""

    verdict: str
    target: str
    action: str
    ts_ns: int
    cost_gpu_s: float
    failed: bool = False
