"""Two examples of bad policies."""

import msgspec

from torchloom_core.plugin import hookimpl


class NoOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Raises:
    name = "raises"
    Options = NoOptions
    needs = ()

    def __init__(self, options):
        self._ticks = 0

    def on_tick(self, view):
        self._ticks += 1
        if self._ticks == 3:
            raise ValueError("three is enough")
        return []


class Hangs(Raises):
    name = "hangs"

    def on_tick(self, view):
        self._ticks += 1
        while self._ticks == 5:
            pass
        return []


@hookimpl
def torchloom_register(registry):
    registry.policy(Raises)
    registry.policy(Hangs)
