"""What the link to the sidecar asks of the trainer that it is in."""

from typing import Protocol

from torchloom_core.wire.messages import Command, Hello, Hold
from torchloom_threadlet.ipc import Samples


class Trainer(Protocol):
    """The trainer, as its link sees it."""

    @property
    def unset(self) -> str:
        """What to set so that no other process has this worker's name."""

    def hello(self) -> Hello:
        """Return who the worker is and what it can do now."""

    def report(self) -> Samples | None:
        """Return progress and new samples, or None if there is nothing new."""

    def progress(self) -> Samples:
        """Return how far the trainer is."""

    def deliver(self, command: Command) -> None:
        """Take a command that has arrived."""

    def hear(self, hold: Hold) -> None:
        """Take what the Weaver says of the pause in force."""

    def admitted(self, unwanted: str) -> None:
        """Hear how enrolling ended, or that it has not begun."""

    def unlinked(self) -> None:
        """Hear that there is no Weaver to talk to, and never will be."""
