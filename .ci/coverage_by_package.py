"""Print which share of the lines of each package, core packages apart, the tests ran."""

from collections import Counter
from pathlib import PurePath

from coverage import Coverage


def package(path: PurePath) -> str:
    """Return the package of a file, and for the core the package in it and in its wing."""
    parts = path.parts[next(i for i, p in enumerate(path.parts) if p.startswith("torchloom_")) :]
    depth = 1 if parts[0] != "torchloom_core" else 3 if parts[1] in ("lab", "live") else 2
    return ".".join(parts[: min(depth, len(parts) - 1)])


def main() -> None:
    """Print a line for each package and one for all."""
    coverage = Coverage()
    coverage.load()
    lines, missed = Counter[str](), Counter[str]()
    for path in sorted(coverage.get_data().measured_files()):
        _, statements, _, missing, _ = coverage.analysis2(path)
        for name in (package(PurePath(path)), "all"):
            lines[name] += len(statements)
            missed[name] += len(missing)
    for name in sorted(lines, key=lambda name: (name == "all", name)):
        print(f"{name:32} {lines[name]:6} lines {1 - missed[name] / lines[name]:7.1%}")


if __name__ == "__main__":
    main()
