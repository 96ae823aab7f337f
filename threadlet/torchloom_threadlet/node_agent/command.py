"""``torchloom node-agent``."""

import logging
import os
import re
import shlex
import shutil
import signal
import socket
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from torchloom_core.floor.errors import ConfigError
from torchloom_core.wire.limits import NAME
from torchloom_core.wire.placement import NODE_AGENT


def node_agent(
    *,
    role: list[str],
    start: str = "",
    node: str = "",
    linger_s: Annotated[float, Parameter(validator=Number(gte=0, lte=1e6))] = 60.0,
) -> None:
    """Run one program of several on this node, and change it when the Weaver says so.

    The program is started again when it fails. Its output goes where the agent's does.

    Parameters
    ----------
    role
        Name and command of a role, such as ``trainer=python train.py``; once for each role.
    start
        Role to begin with. Default: the first one.
    node
        Name of this node. Default: TORCHLOOM_NODE, or the host's name.
    linger_s
        How long to wait for another role once the program has ended with status 0, s.
    """
    from torchloom_threadlet.node_agent.agent import NodeAgent

    found = list(map(_program, role))
    programs = dict(found)
    if twice := [name for name in programs if [one for one, _ in found].count(name) > 1]:
        raise ConfigError(f"--role: need one command for each role, {twice[0]} has two")
    first = start or next(iter(programs))
    if first not in programs:
        raise ConfigError(f"--start: need one of {', '.join(programs)}, was {first!r}")
    node = node or os.environ.get("TORCHLOOM_NODE", "") or socket.gethostname()
    if not re.match(NAME, node):
        raise ConfigError(f"--node: need letters, digits, '_' and '-', was {node!r}")
    form = "%(asctime)s %(levelname)-7s %(message)s"
    logging.basicConfig(format=form, level=logging.INFO, force=True)
    agent = NodeAgent(programs, first, node, linger_s)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.stop())
    agent.run()


def _program(text: str) -> tuple[str, list[str]]:
    name, _, command = text.partition("=")
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"--role {name}: {error}, was {command!r}") from None
    if not re.match(NAME, name) or name == NODE_AGENT or not words:
        raise ConfigError(f"--role: need NAME=COMMAND, such as trainer='python x.py', was {text!r}")
    if shutil.which(words[0]) is None:
        raise ConfigError(f"--role {name}: no program is called {words[0]!r}")
    return name, words
