"""``torchloom plugins``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchloom_core.cli.options import AsJson, ConfigPath
from torchloom_core.cli.output import console, print_json
from torchloom_core.config.loading import load
from torchloom_core.config.schema import Config
from torchloom_core.floor.errors import ModelError

if TYPE_CHECKING:
    from torchloom_core.lab.activation.discovery import PluginInfo


def plugins(*, config: ConfigPath = None, json: AsJson = False) -> int:
    """List every plugin: active in this config, available, or broken and why.

    Exit status 1 if a plugin that the config enables is broken.
    """
    from torchloom_core.lab.activation.discovery import discover

    settings = load(config)
    rows = [_describe(info, settings) for info in discover()]
    if json:
        print_json(rows)
    else:
        _print_table(rows)
    return int(any(row["problem"] and row["active"] for row in rows))


def _describe(info: "PluginInfo", settings: Config) -> dict[str, Any]:
    of_roles = (name for role in settings.roles.values() for name in role.policies)
    active = info.name in (
        *settings.policies,
        *of_roles,
        *settings.predictors,
        *settings.effectors,
    )
    return {
        "name": info.name,
        "kind": info.kind or "unknown",
        "state": "broken" if info.problem else "active" if active else "available",
        "active": active,
        "package": info.package,
        "version": info.version,
        "entry_point": info.entry_point,
        "problem": info.problem,
        "model": _model(info, settings),
        "options": [
            {"name": name, "type": kind, "default": default} for name, kind, default in info.options
        ],
    }


def _model(info: "PluginInfo", settings: Config) -> dict[str, str] | None:
    """Return the model of a predictor by the config, and the verdict on it."""
    from torchloom_core.lab.learning.model import Model

    path = settings.predictors.get(info.name, {}).get("model")
    if info.kind != "predictor" or not isinstance(path, str):
        return None
    try:
        level, sentence = Model.load(Path(path)).card.verdict
    except ModelError as error:
        return {"path": path, "verdict": "", "sentence": str(error)}
    return {"path": path, "verdict": level, "sentence": sentence}


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.markup import escape
    from rich.table import Table

    style = {"active": "green", "available": "dim", "broken": "red"}
    table = Table("name", "kind", "state", "package", "options or problem", box=None)
    for row in rows:
        options = "\n".join(f"{o['name']}: {o['type']} = {o['default']}" for o in row["options"])
        if model := row["model"]:
            options = f"model {model['path']}\n{model['sentence']}"
        table.add_row(
            escape(row["name"]),
            row["kind"],
            f"[{style[row['state']]}]{row['state']}[/]",
            escape(f"{row['package']} {row['version']}"),
            escape(row["problem"] or options),
        )
    console().print(table)
