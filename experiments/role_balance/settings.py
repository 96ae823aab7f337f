"""What changes during a run: one small file a setting, in the folder in which all processes run."""

from pathlib import Path

GENERATE_S, TRAIN_S, LIGHTHOUSE = "generate_s", "train_s", "lighthouse"


def setting(name: str) -> str:
    """Return the present value."""
    return Path(name).read_text()


def write(folder: Path, name: str, value: object) -> None:
    """Replace a value, whole."""
    part = folder / f"{name}.part"
    part.write_text(str(value))
    part.replace(folder / name)
