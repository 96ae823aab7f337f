"""What the link to the sidecar needs from its trainer."""

from typing import Protocol

from torchloom_core.wire.commands import Command
from torchloom_core.wire.messages import Hello, PauseState
from torchloom_threadlet.ipc import Samples


class Trainer(Protocol):
    """The trainer, as the link sees it."""

    @property
    def unset(self) -> str:
        """What to set so that no other process gets this worker's name."""

    def hello(self) -> Hello:
        """Return the worker's identity and what it can do now."""

    def report(self) -> Samples | None:
        """Return progress and new samples, or None if there is nothing new."""

    def progress(self) -> Samples:
        """Return the trainer's progress."""

    def deliver(self, command: Command) -> None:
        """Take a command that has arrived."""

    def update_pause(self, state: PauseState) -> None:
        """Apply the Weaver's report on the pause in force."""

    def admitted(self, unwanted: str) -> None:
        """Take the result of enrolling, or that it has not begun."""

    def unlinked(self) -> None:
        """Continue without a Weaver for good."""
