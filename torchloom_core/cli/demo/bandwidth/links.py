"""The links of the demo: namespaces and tc where that can be, the process group elsewhere."""

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from torchloom_core.cli.demo.bandwidth.namespaces import (
    CONTROL,
    PREFIX,
    Lab,
    Rate,
    reason_for_none,
)
from torchloom_core.cli.demo.marks import is_mark, own_mark
from torchloom_core.cli.demo.processes import Loopback

_NAMESPACES = Path("/var/run/netns")


class ThrottledLinks(Loopback):
    """Links that the trainers' process groups keep to themselves, on loopback.

    Parameters
    ----------
    folder : Path
        Where the trainers read what a link carries.
    why : str
        Why the links are not shaped.
    """

    def __init__(self, folder: Path, why: str) -> None:
        self._rate = folder / "bytes_per_s"
        self.text = f"links throttled in the process group, since {why}"

    def running(self) -> AbstractContextManager[object]:
        """Return a context in which the links are there."""
        return nullcontext()

    def set_rate(self, mbit: float | None) -> None:
        """Have every link carry so much from now on."""
        rate = "" if mbit is None else f"{mbit * 1e6 / 8:.0f}"
        unfinished = self._rate.with_suffix(".part")
        unfinished.write_text(rate, encoding="utf-8")
        unfinished.replace(self._rate)

    def trainer(self, at: int, command: Sequence[str]) -> list[str]:
        """Return the trainer's command, with where it reads what its link carries."""
        return [*command, "--link-rate", str(self._rate)]


class ShapedLinks(Loopback):
    """A network namespace for each group, with a link of its own that ``tc`` shapes."""

    text = "links shaped by tc, a network namespace for each group"

    def __init__(self, groups: int) -> None:
        self._lab = _lab(groups, own_mark())
        self._groups = groups
        self.host = self._lab.hub_address

    def running(self) -> AbstractContextManager[object]:
        """Return a context in which the links are there."""
        return self._lab

    def set_rate(self, mbit: float | None) -> None:
        """Have every link carry so much from now on."""
        self._lab.set_rates([Rate.both(mbit)] * self._groups)

    def hub(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs ``command`` where broker and lighthouse are."""
        return self._lab.inside(None, command)

    def trainer(self, at: int, command: Sequence[str]) -> list[str]:
        """Return the command that runs a trainer in its namespace."""
        command = [*command, "--host", self._lab.address(at, CONTROL)]
        return self._lab.inside(at, command)

    def environment(self, at: int) -> Mapping[str, str]:
        """Return which link the gradients take, and where others probe it."""
        return {**self._lab.environment(), "TORCHLOOM_LINK_ADDRESS": self._lab.address(at)}


def links_for(folder: Path, groups: int) -> ThrottledLinks | ShapedLinks:
    """Return shaped links where this machine allows it."""
    if why := reason_for_none():
        return ThrottledLinks(folder, why)
    return ShapedLinks(groups)


def marks_of_links() -> set[str]:
    """Return the marks of the demos whose shaped links are there, and may be taken down."""
    if os.geteuid() != 0:
        return set()
    begin = f"{PREFIX}-demo-"
    names = (space.name.removeprefix(begin) for space in _NAMESPACES.glob(f"{begin}*"))
    return {mark for name in names if is_mark(mark := name.rpartition("-")[0])}


def take_down_links(mark: str) -> None:
    """End the shaped links of the demo with a mark, if they are there."""
    if mark in marks_of_links():
        _lab(1, mark).down()


def _lab(groups: int, mark: str) -> Lab:
    return Lab(groups, f"demo-{mark}")
