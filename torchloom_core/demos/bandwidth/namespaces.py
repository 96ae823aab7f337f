"""A lab of network namespaces on one machine, one per rank, with links of variable bandwidth.

Every rank has two links to a hub, which is a namespace as well. ``data`` is shaped and carries the
process group's traffic and the checkpoints between peers. ``control`` is not shaped and carries
NATS, the lighthouse and the stores, so that only the allreduce is measured.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchloom_core.floor.errors import StateError

PREFIX = "loomlab"
_PROBE = f"{PREFIX}-probe-"
DATA, CONTROL = "data", "control"
HUB = "hub"
BURST_BYTES = 64 * 1024
"""Small, so that the rate also applies to a short transfer, but as large as the kernel's largest
packet: splitting packets would cost too much CPU time."""

MTU_BYTES = 9000
"""With 1,500-byte frames, two cores carry less than 500 Mbit/s for four ranks."""

QUEUE_S = 0.05
LEAST_QUEUE_BYTES = 256 * 1024
MOST_RANKS = 64
ENDING_S = 10.0


class NoLabError(StateError):
    """The machine does not support a lab; the message gives the reason."""


class LabError(StateError):
    """A command of the lab failed."""


@dataclass(frozen=True)
class Rate:
    """Bandwidth of a rank's data link from the rank and to it, Mbit/s; None: unlimited."""

    up: float | None = None
    down: float | None = None

    @classmethod
    def both(cls, mbit: float | None) -> "Rate":
        """Return the same bandwidth in both directions."""
        return cls(mbit, mbit)


def reason_for_none() -> str:
    """Return why this machine does not support a lab; empty if it does."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"`{tool}` is missing: install iproute2"
    if os.geteuid() != 0:
        return "network namespaces need root"
    probe = f"{_PROBE}{os.getpid()}"
    try:
        for space in _namespaces(_PROBE):  # left by a process that was killed
            if not Path("/proc", space.removeprefix(_PROBE)).exists():
                _run(["ip", "netns", "del", space])
        _run(["ip", "netns", "add", probe])
        _run(["ip", "-n", probe, "link", "add", DATA, "type", "veth"])
        run_batch("tc", probe, [_shape(DATA, 100)])
    except LabError as error:
        return f"namespaces with shaped links are not allowed here: {error}"
    finally:
        subprocess.run(["ip", "netns", "del", probe], check=False, capture_output=True)
    return ""


class Lab:
    """The namespaces of a lab with 1 to 64 ranks; the context removes them at its end.

    Labs with different names are independent. Entering the context raises NoLabError if this
    machine does not support a lab.
    """

    hub_address = "10.79.0.254"
    """Of the hub on the control link."""

    def __init__(self, ranks: int, name: str = "a") -> None:
        if not 1 <= ranks <= MOST_RANKS:
            raise ValueError(f"need 1 to {MOST_RANKS} ranks, was {ranks}")
        self.ranks = ranks
        self._begin = f"{PREFIX}-{name}-"
        self.hub = self._begin + HUB
        """The namespace of the Weaver, the broker and the lighthouse."""

    def __enter__(self) -> "Lab":
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    # --- names and addresses ---

    def namespace(self, rank: int) -> str:
        """Return the name of a rank's namespace."""
        return f"{self._begin}{rank}"

    def address(self, rank: int, link: str = DATA) -> str:
        """Return a rank's address on one of its links."""
        return f"10.{78 if link == DATA else 79}.0.{rank + 1}"

    def inside(self, place: int | None, command: Sequence[str]) -> list[str]:
        """Return the command that runs ``command`` at a rank or in the hub, with the same PID.

        The host name is set to the control address, which torchft publishes.
        """
        space, name = self.hub, self.hub_address
        if place is not None:
            space, name = self.namespace(place), self.address(place, CONTROL)
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name]
        return ["ip", "netns", "exec", space, *named, *command]

    def processes(self, place: int | None) -> list[int]:
        """Return the PIDs at a rank or in the hub."""
        return _processes(self.hub if place is None else self.namespace(place))

    def environment(self) -> Mapping[str, str]:
        """Return environment variables that route a rank's gradients over the data link."""
        return {"GLOO_SOCKET_IFNAME": DATA, "TP_SOCKET_IFNAME": DATA}

    # --- up and down ---

    def up(self) -> None:
        """Set the lab up; remove an existing one first."""
        if reason := reason_for_none():
            raise NoLabError(reason)
        self.down()
        try:
            self._set_up()
        except BaseException:
            self.down()
            raise

    def _set_up(self) -> None:
        _run(["ip", "netns", "add", self.hub])
        in_hub = ["link set lo up"]
        for link in (DATA, CONTROL):
            # No spanning tree: it would delay the first packets.
            in_hub += [f"link add {link} type bridge stp_state 0 forward_delay 0"]
            in_hub += [f"link set {link} up"]
        in_hub += [f"addr add {self.hub_address}/24 dev {CONTROL}"]
        for rank in range(self.ranks):
            space = self.namespace(rank)
            _run(["ip", "netns", "add", space])
            in_rank = ["link set lo up"]
            for link in (DATA, CONTROL):
                port = _port(link, rank)
                in_hub += [
                    f"link add {port} mtu {MTU_BYTES} type veth "
                    f"peer name {link} mtu {MTU_BYTES} netns {space}",
                    f"link set {port} master {link}",
                    f"link set {port} up",
                ]
                in_rank += [
                    f"addr add {self.address(rank, link)}/24 dev {link}",
                    f"link set {link} up",
                ]
            run_batch("ip", self.hub, in_hub)
            run_batch("ip", space, in_rank)
            in_hub = []

    def down(self) -> None:
        """Kill every process in the lab's namespaces, and remove them; also after a crash."""
        for space in self.left():
            _end_processes(space)
            _run(["ip", "netns", "del", space])

    def left(self) -> list[str]:
        """Return the existing namespaces of this lab."""
        return _namespaces(self._begin)

    # --- shaping ---

    def set_rates(self, rates: Sequence[Rate]) -> None:
        """Set the bandwidth of each rank's data link."""
        if len(rates) != self.ranks:
            raise ValueError(f"need a rate for each of {self.ranks} ranks, was {len(rates)}")
        lines: dict[str, list[str]] = {}
        for rank, rate in enumerate(rates):
            lines.setdefault(self.namespace(rank), []).append(_shape(DATA, rate.up))
            lines.setdefault(self.hub, []).append(_shape(_port(DATA, rank), rate.down))
        for space, changes in lines.items():
            run_batch("tc", space, changes)


def _namespaces(begin: str) -> list[str]:
    names = [line.split()[0] for line in _run(["ip", "netns", "list"]).splitlines() if line.strip()]
    return sorted(name for name in names if name.startswith(begin))


def _port(link: str, rank: int) -> str:
    return f"{link[0]}{rank}"


def _shape(device: str, mbit: float | None) -> str:
    """Return the ``tc`` line that shapes a device, or changes its rate."""
    if mbit is None:
        return f"qdisc replace dev {device} root noqueue"
    if not mbit > 0:
        raise ValueError(f"need a rate > 0 Mbit/s, was {mbit}")
    limit = max(LEAST_QUEUE_BYTES, round(mbit * 1e6 / 8 * QUEUE_S))
    shape = f"tbf rate {round(mbit * 1000)}kbit burst {BURST_BYTES} limit {limit}"
    return f"qdisc replace dev {device} root handle 1: {shape}"


def _end_processes(space: str) -> None:
    """Kill the processes in a namespace, and return once they have ended."""
    end = time.monotonic() + ENDING_S
    while pids := _processes(space):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > end:
            raise LabError(f"process {pids[0]} in {space} does not end")
        time.sleep(0.01)


def _processes(space: str) -> list[int]:
    return [int(pid) for pid in _run(["ip", "netns", "pids", space]).split()]


def run_batch(tool: str, space: str, lines: Sequence[str]) -> None:
    """Run many lines of ``ip`` or ``tc`` as one process."""
    _run([tool, "-n", space, "-batch", "-"], "\n".join(lines) + "\n")


def _run(command: Sequence[str], given: str = "") -> str:
    ended = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if ended.returncode:
        output = (ended.stderr or ended.stdout).strip().splitlines()
        raise LabError(f"{' '.join(command)}: {output[0] if output else ended.returncode}")
    return ended.stdout
