"""Check the environment of NCCL and Gloo: interfaces that exist, and settings known to harm."""

import socket
from collections.abc import Iterable, Mapping

from torchloom_core.cli.doctor.finding import Check, Finding, Host

_EXACT = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_BY_PREFIX = "NCCL_SOCKET_IFNAME"
_LOOPBACK = "lo"

_HARMFUL: tuple[tuple[Mapping[str, str], str, str], ...] = (
    (
        {"NCCL_ASYNC_ERROR_HANDLING": "*"},
        "torch reads TORCH_NCCL_ASYNC_ERROR_HANDLING instead",
        "rename it",
    ),
    (
        {"NCCL_BLOCKING_WAIT": "*"},
        "torch reads TORCH_NCCL_BLOCKING_WAIT instead",
        "rename it, or unset it",
    ),
    (
        {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "2"},
        "training continues with what a failed collective leaves",
        "unset it; with torchft set it to 0",
    ),
    (
        {"TORCH_NCCL_BLOCKING_WAIT": "1"},
        "each collective blocks its rank, which then cannot leave it",
        "unset it",
    ),
    (
        {"TORCH_GLOO_LAZY_INIT": "1"},
        "a hung peer cannot be cut off: connections are made later",
        "unset it",
    ),
    ({"CUDA_LAUNCH_BLOCKING": "1"}, "each kernel is waited for", "unset it outside debugging"),
    (
        {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
        "GPUs of one host talk over the network",
        "unset one of both",
    ),
)


def interfaces(host: Host) -> Iterable[Finding]:
    """Look up each interface that a variable names."""
    if host.config is not None:
        return
    present = [name for _, name in socket.if_nameindex()]
    for variable in (*_EXACT, _BY_PREFIX):
        value = host.environment.get(variable)
        if value is None:
            continue
        chosen = _chosen(variable, value, present)
        if not chosen:
            text = f"{variable}={value}: no such interface; there are {', '.join(present)}"
            yield Finding("interfaces", "problem", text, f"correct or unset {variable}")
        elif all(name.startswith(_LOOPBACK) for name in chosen) and host.broker_is_remote:
            text = f"{variable}={value} reaches no other host"
            yield Finding("interfaces", "problem", text, f"set {variable} to the network's")
        else:
            yield Finding("interfaces", "ok", f"{variable}={value}")


def _chosen(variable: str, value: str, present: Iterable[str]) -> list[str]:
    """Return the interfaces that a variable selects; nothing if it names one that is not there.

    NCCL takes prefixes, ``=`` before exact names, and ``^`` before those it leaves out.
    """
    if variable in _EXACT:
        names = value.split(",")
        return names if set(names) <= set(present) else []
    leaves_out = value.startswith("^")
    names = value.removeprefix("^").removeprefix("=").split(",")
    is_exact = value.removeprefix("^").startswith("=")
    named = [
        one for one in present if any(one == n if is_exact else one.startswith(n) for n in names)
    ]
    return [one for one in present if one not in named] if leaves_out else named


def harmful(host: Host) -> Iterable[Finding]:
    """Compare the environment with settings known to harm a run."""
    if host.config is not None:
        return
    found = False
    for settings, why, change in _HARMFUL:
        environment = host.environment
        if all(
            name in environment and value in ("*", environment[name])
            for name, value in settings.items()
        ):
            found = True
            shown = " ".join(f"{name}={environment[name]}" for name in settings)
            yield Finding("collectives", "warning", f"{shown}: {why}", change)
    if not found:
        yield Finding("collectives", "ok", "no setting that is known to harm")


CHECKS: tuple[Check, ...] = (interfaces, harmful)
