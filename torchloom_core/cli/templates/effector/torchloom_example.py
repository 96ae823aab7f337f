"""A torchLoom effector; enable it by a table ``[effectors.example]`` in torchloom.toml."""

from pathlib import Path

import msgspec

from torchloom_core.plugin import Delivery, Notice, Registry, Subscription, hookimpl


class Example:
    """Write each notice to a file in ``folder``, named by the id of the delivery."""

    name = "example"
    subscriptions = (Subscription(Notice),)

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options in ``[effectors.example]``.

        Attributes
        ----------
        folder : str
            Existing folder to write to.
        """

        folder: str

    def __init__(self, options: Options) -> None:
        self._folder = Path(options.folder)

    async def send(self, delivery: Delivery) -> str | None:
        """Write the event; a delivery that is repeated, with the same id, changes nothing."""
        path = self._folder / f"{delivery.run}-{delivery.id}.json"
        path.write_bytes(msgspec.json.encode(delivery))
        return f"wrote {path}"


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the effector."""
    registry.effector(Example)
