"""Slow links for the demo: by namespaces and tc if possible, else in the process group."""

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from torchloom_core.demos.bandwidth.namespaces import (
    CONTROL,
    PREFIX,
    Lab,
    Rate,
    reason_for_none,
)
from torchloom_core.demos.marks import is_mark, own_mark
from torchloom_core.demos.processes import Loopback
from torchloom_core.floor.files import write_whole

_NAMESPACES = Path("/var/run/netns")


class ThrottledLinks(Loopback):
    """Loopback links that the trainers' process groups throttle, by a file in ``folder``.

    ``why`` is why the links are not shaped.
    """

    def __init__(self, folder: Path, why: str) -> None:
        self._rate = folder / "bytes_per_s"
        self.text = f"links throttled in the process group, because {why}"

    def running(self) -> AbstractContextManager[object]:
        """Return a context in which the links exist."""
        return nullcontext()

    def set_rate(self, mbit: float | None) -> None:
        """Set the bandwidth of every link; None: unlimited."""
        rate = "" if mbit is None else f"{mbit * 1e6 / 8:.0f}"
        write_whole(self._rate, rate.encode())

    def trainer(self, at: int, command: Sequence[str]) -> list[str]:
        """Return the trainer's command, with the file of the link rate."""
        return [*command, "--link-rate", str(self._rate)]


class ShapedLinks(Loopback):
    """A network namespace per group, with a link that ``tc`` shapes."""

    text = "links shaped by tc, one network namespace per group"

    def __init__(self, groups: int) -> None:
        self._lab = _lab(groups, own_mark())
        self._groups = groups
        self.host = self._lab.hub_address

    def running(self) -> AbstractContextManager[object]:
        """Return a context in which the links exist."""
        return self._lab

    def set_rate(self, mbit: float | None) -> None:
        """Set the bandwidth of every link; None: unlimited."""
        self._lab.set_rates([Rate.both(mbit)] * self._groups)

    def hub(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs ``command`` on the host of broker and lighthouse."""
        return self._lab.inside(None, command)

    def trainer(self, at: int, command: Sequence[str]) -> list[str]:
        """Return the command that runs a trainer in its namespace."""
        command = [*command, "--host", self._lab.address(at, CONTROL)]
        return self._lab.inside(at, command)

    def environment(self, at: int) -> Mapping[str, str]:
        """Return environment variables: the link for gradients, and its probe address."""
        return {**self._lab.environment(), "TORCHLOOM_LINK_ADDRESS": self._lab.address(at)}


def links_for(folder: Path, groups: int) -> ThrottledLinks | ShapedLinks:
    """Return shaped links if this machine supports them, else throttled ones."""
    if why := reason_for_none():
        return ThrottledLinks(folder, why)
    return ShapedLinks(groups)


def marks_of_links() -> set[str]:
    """Return the marks of the demos with shaped links that this user can take down."""
    if os.geteuid() != 0:
        return set()
    begin = f"{PREFIX}-demo-"
    names = (space.name.removeprefix(begin) for space in _NAMESPACES.glob(f"{begin}*"))
    return {mark for name in names if is_mark(mark := name.rpartition("-")[0])}


def take_down_links(mark: str) -> None:
    """Remove the shaped links of the demo with a mark, if they exist."""
    if mark in marks_of_links():
        _lab(1, mark).down()


def _lab(groups: int, mark: str) -> Lab:
    return Lab(groups, f"demo-{mark}")
