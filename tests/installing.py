"""Install a small package into a folder of the Python path, with entry points."""

from pathlib import Path


def install(site: Path, package: str, module: str, groups: dict[str, dict[str, str]]) -> None:
    """Write ``package.py`` and its metadata; ``groups`` has name and value of entry points."""
    (site / f"{package}.py").write_text(module)
    metadata = site / f"{package}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = []
    for group, points in groups.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
