"""``torchloom metrics``: write the alert rules for Prometheus and the dashboard for Grafana."""

import sys
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from torchloom_core.cli.output import console
from torchloom_core.floor.errors import StateError

_To = Annotated[Path | None, Parameter(show_default=False)]


def rules(*, to: _To = None) -> None:
    """Write the alert rules for Prometheus' ``rule_files``.

    Parameters
    ----------
    to
        File to write; default: standard output.
    """
    _write("alert_rules.yml", to)


def dashboard(*, to: _To = None) -> None:
    """Write the dashboard for Grafana, to import or to provision.

    Parameters
    ----------
    to
        File to write; default: standard output.
    """
    _write("grafana_dashboard.json", to)


def _write(name: str, to: Path | None) -> None:
    text = (files("torchloom_core.live.weaver.metrics") / name).read_text(encoding="utf-8")
    if to is None:
        sys.stdout.write(text)
        return
    try:
        to.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StateError(f"{to}: cannot be written: {error.strerror}") from None
    console().print(f"wrote {to}")
