"""What was granted, and how far it is: plans, their commands in flight, and past grants."""

import msgspec

from torchloom_core.actions import Action
from torchloom_core.messages import Command, Deed


class Flight(msgspec.Struct, frozen=True, kw_only=True):
    """One command on its way, and the last that was heard of it."""

    command: Command
    status: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A granted action being carried out, in stages of commands.

    Attributes
    ----------
    stages : tuple of tuple of (worker, incarnation, deed)
        What is still to be issued, stage by stage; the next stage waits for the present one.
    pending : tuple of str
        Commands of the present stage that have not ended.
    settled : dict of str to str
        Commands that have ended, with their final status and, where one failed, why.
    await_training : tuple of str
        Workers that must be seen training after the first stage, before the next.
    """

    verdict: str
    policy: str
    action: Action
    started_ns: int
    deadline_ns: int
    stages: tuple[tuple[tuple[str, int, Deed], ...], ...]
    pending: tuple[str, ...] = ()
    settled: dict[str, str] = {}
    await_training: tuple[str, ...] = ()


class Granted(msgspec.Struct, frozen=True, kw_only=True):
    """A past grant, as cooldowns, rates, budgets and the breaker remember it."""

    verdict: str
    target: str
    action: str
    ts_ns: int
    cost_gpu_s: float
    failed: bool = False
