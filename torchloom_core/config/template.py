"""The commented ``torchloom.toml`` that ``torchloom init`` writes."""

from importlib import resources
from pathlib import Path

from torchloom_core.floor.errors import ConfigError, StateError


def template_text() -> str:
    """Return a config file with every key, its default and its meaning."""
    return (
        resources.files("torchloom_core.config")
        .joinpath("template.toml")
        .read_text(encoding="utf-8")
    )


def write_template(path: Path, *, force: bool = False) -> None:
    """Write the template to ``path``.

    Raises
    ------
    ConfigError
        If there is a file already, unless ``force``.
    StateError
        If the file cannot be written.
    """
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(template_text())
    except FileExistsError:
        raise ConfigError(f"{path}: exists already; --force overwrites it") from None
    except OSError as error:
        raise StateError(f"{path}: cannot be written: {error.strerror}") from None
