"""``torchloom doctor``: check a host's set-up, and say what to change."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.text import Text

from torchloom_core.cli.doctor import (
    collectives,
    credentials,
    disk,
    limits,
    ports,
    programs,
    servers,
    start,
    torchft,
)
from torchloom_core.cli.doctor.finding import Check, Finding, Host
from torchloom_core.cli.options import AsJson, ConfigPath
from torchloom_core.cli.output import console, print_json
from torchloom_core.config.loading import DEFAULT_PATH, load
from torchloom_core.floor.errors import MessageError
from torchloom_core.wire.codec import MAX_MESSAGE_BYTES, decode_json
from torchloom_core.wire.messages import JoinFile

_TOPICS = (programs, start, ports, servers, credentials, limits, disk, torchft, collectives)
_CHECKS: tuple[Check, ...] = tuple(check for topic in _TOPICS for check in topic.CHECKS)
_STYLE = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def doctor(
    *,
    join: Path | None = None,
    workers: Annotated[int, Parameter(validator=Number(gte=1, lte=1_000_000))] = 100,
    json: AsJson = False,
    config: ConfigPath = None,
) -> int:
    """Check this host's set-up: one line a check, and what to change.

    Without --join it checks the Weaver's host. Nothing is changed. The exit status is 1 if there is
    a problem; warnings do not count.

    Parameters
    ----------
    join
        The join.json of a Weaver: check a training host, in the environment of a trainer.
    workers
        How many workers the run is expected to have.
    """
    findings = []
    for finding in examine(_host(join, workers, config)):
        findings.append(finding)
        if not json:
            _print(finding)
    count = {level: sum(one.level == level for one in findings) for level in _STYLE}
    if json:
        print_json({"ok": not count["problem"], "findings": findings})
    else:
        text = ", ".join(f"{number} {level}" for level, number in count.items())
        console().print(text, style="bold", markup=False)
    return int(count["problem"] > 0)


def examine(host: Host, checks: Iterable[Check] = _CHECKS) -> Iterator[Finding]:
    """Yield what each check finds, one after the other."""
    for check in checks:
        try:
            yield from check(host)
        except OSError as error:
            text = f"cannot be checked: {error.filename or ''} {error.strerror or error}"
            yield Finding(check.__name__, "problem", text, "allow this user to read it")


def _host(join: Path | None, workers: int, config: Path | None) -> Host:
    environment = dict(os.environ)
    if join is not None:
        return Host(environment=environment, workers=workers, join_path=join, join=_read_join(join))
    settings = load(config)
    source = config or DEFAULT_PATH
    path = Path(settings.weaver.state_dir) / "join.json"
    return Host(
        environment=environment,
        workers=workers,
        join_path=path,
        join=_read_join(path),
        config=settings,
        source=source if source.exists() else None,
    )


def _read_join(path: Path) -> JoinFile | None:
    try:
        data = path.read_bytes()
        return decode_json(JoinFile, data[: MAX_MESSAGE_BYTES + 1], "join.json")
    except (OSError, MessageError):
        return None


def _print(finding: Finding) -> None:
    change = f". To change: {finding.change}" if finding.change else ""
    level = f"{finding.level:<8}", _STYLE[finding.level]
    text = Text.assemble(level, f" {finding.check}: {finding.text}{change}")
    console().print(text, soft_wrap=True)
