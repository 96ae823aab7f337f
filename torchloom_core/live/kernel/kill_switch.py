"""The kill switch: while it is on, no action is granted and nothing is set again."""

from torchloom_core.floor.persistent_table import PersistentTable
from torchloom_core.wire.plans import Stopped


class KillSwitch:
    """The switch, whose state survives a restart of the Weaver."""

    def __init__(self, dry_run: bool) -> None:
        self._dry_run = dry_run
        self.table: PersistentTable[Stopped] = PersistentTable("actions")

    @property
    def stopped(self) -> bool:
        """Whether the kill switch is on."""
        return "stopped" in self.table

    @property
    def is_passive(self) -> bool:
        """Whether only plans send commands: in a dry run, or with the kill switch on."""
        return self._dry_run or self.stopped

    def stop(self) -> None:
        """Turn the kill switch on."""
        self.table["stopped"] = Stopped()

    def resume(self) -> None:
        """Turn the kill switch off."""
        self.table.pop("stopped", None)
