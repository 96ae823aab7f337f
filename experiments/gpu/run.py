"""Measure on one GPU, side by side in one run, what torchLoom costs there and how exact it is.

``python experiments/gpu/run.py`` takes under eight minutes. Without a GPU, or with ``--cpu``,
every section that can run does so in small, to try the script; nothing is then written by itself.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
sys.path.insert(0, str(Path(__file__).parents[2]))  # however torchLoom is installed

from experiments.bench.figure import Figure
from experiments.bench.machine import with_torch
from experiments.gpu.needed import INSTALL, INSTALL_COMPILER, missing_compiler, missing_packages

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

SECTIONS = {
    "step_overhead": 180,
    "coding": 50,
    "checkpoint_stall": 110,
    "device_time": 40,
    "nvml_cost": 25,
    "nccl": 65,
}
"""The sections, and the seconds after which each is ended: 470 in all, under eight minutes."""

_COMPILING = {"step_overhead", "coding"}
"""The sections that need a C compiler on a GPU."""

_SAVING = {"checkpoint_stall"}
"""The sections whose temporary files are in the working directory: others may be in memory."""

_SLOWER = 4
"""What only tries the script may have to share the cores."""

_KINDS = {"figure": "figures", "skipped": "skipped", "failed": "failed", "note": "notes"}
"""What a section reports, and where it is in an :class:`Outcome`."""


@dataclass
class Outcome:
    """What came of a section.

    Attributes
    ----------
    skipped, failed : list of str
        What the machine lacks, and what failed, each in a line.
    """

    figures: list[Figure] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0


def command_of(section: str, device: str) -> list[str]:
    """Return the command that runs a section."""
    return [sys.executable, "-m", f"experiments.gpu.{section}", device]


def run(section: str, device: str, limit_s: float, signals: Sequence[signal.Signals]) -> Outcome:
    """Run a section in a process of its own, so that none harms another; a signal ends it."""
    from experiments.gpu.section_process import run_to_end

    before = filter(None, [os.environ.get("PYTHONPATH")])
    path = os.pathsep.join([str(ROOT), str(ROOT / "threadlet"), *before])
    files = Path.cwd() if section in _SAVING else None
    began_s = time.perf_counter()
    try:
        ended = run_to_end(command_of(section, device), path, limit_s, signals, files)
    except OSError as error:
        return Outcome(failed=[f"could not be started: {error}"])
    outcome = outcome_of(ended.printed)
    if ended.problem:
        outcome.failed.append(": ".join([ended.problem, *ended.lines.splitlines()[-1:]]))
    if outcome.failed:
        sys.stderr.write(ended.lines)
    outcome.seconds = round(time.perf_counter() - began_s, 1)
    return outcome


def outcome_of(printed: str) -> Outcome:
    """Return what a section's process has reported, a line each; failed with a line cut short."""
    import msgspec  # first of all run.py says what is not installed

    outcome = Outcome()
    for line in printed.splitlines():
        kind, _, _ = line.removeprefix('{"').partition('": ')
        if line.startswith('{"') and kind in _KINDS:
            try:
                getattr(outcome, _KINDS[kind]).append(_value(kind, line))
            except (ValueError, msgspec.MsgspecError) as error:
                outcome.failed.append(f"need a whole line with a {kind}, was {line[:60]}: {error}")
    return outcome


def _value(kind: str, line: str) -> Figure | str:
    import msgspec

    [value] = json.loads(line).values()
    if kind != "figure":
        return msgspec.convert(value, str).replace(str(ROOT), ".")
    figure = msgspec.convert(value, Figure)
    if not figure.ratios:
        raise ValueError("no ratios")
    return figure


def machine(device: str) -> dict[str, Any]:
    """Return what the figures were measured on."""
    import torch

    described: dict[str, Any] = with_torch() | {"device": device}
    described |= {"load_average": "{:.1f} {:.1f} {:.1f}".format(*os.getloadavg())}
    for package in ("torchft-nightly", "nvidia-ml-py", "triton"):
        try:
            described[package] = version(package)
        except PackageNotFoundError:
            described[package] = "not installed"
    if device == "cuda":
        found = torch.cuda.get_device_properties(0)
        described |= {
            "card": found.name,
            "memory_gb": round(found.total_memory / 1e9, 1),
            "driver": _driver(),
            "cuda": torch.version.cuda,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        }
    return described


def _driver() -> str:
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception as error:  # noqa: BLE001 - it is a line of a table
        return f"unknown ({type(error).__name__})"


def lacks_gpu() -> str:
    """Return why no GPU is measured; empty if one can be."""
    import torch

    return "" if torch.cuda.is_available() else f"torch {torch.__version__} finds no GPU"


def refuse_unwritable(path: Path) -> None:
    """Raise SystemExit if ``path`` cannot be written: before minutes of measurements."""
    if not path.parent.is_dir():
        raise SystemExit(f"{path} cannot be written: there is no folder {path.parent}")
    if path.is_dir():
        raise SystemExit(f"{path} cannot be written: it is a folder")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise SystemExit(f"{path} cannot be written: there is no permission")


def is_written(path: Path, write: Callable[[Path], None]) -> bool:
    """Write a file; print why if it fails."""
    try:
        write(path)
    except OSError as error:
        print(f"{path} could not be written: {error}", file=sys.stderr)
        return False
    return True


def save(outcomes: dict[str, Outcome], described: dict[str, Any], path: Path) -> None:
    """Write everything that was measured to ``path``; ``met`` is null on a CPU."""
    judged = described["device"] == "cuda"
    sections = {}
    for name, outcome in outcomes.items():
        figures = [
            asdict(figure) | {"ratio": figure.ratio, "met": figure.met if judged else None}
            for figure in outcome.figures
        ]
        sections[name] = asdict(outcome) | {"figures": figures}
    found = {"machine": described, "sections": sections}
    path.write_text(json.dumps(found, indent=1) + "\n")


def measure(
    sections: Sequence[str], device: str, signals: Sequence[signal.Signals]
) -> dict[str, Outcome]:
    """Run the sections in turn until there is a signal, and print what each has to say."""
    outcomes = {}
    slower = _SLOWER if device == "cpu" else 1
    for name in sections:
        if signals:
            break
        print(f"{name} ...", flush=True)
        outcomes[name] = outcome = run(name, device, SECTIONS[name] * slower, signals)
        for label in ("skipped", "failed", "notes"):
            for text in getattr(outcome, label):
                print(f"  {label}: {text}" if label != "notes" else f"  {text}")
    return outcomes


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sections.

    Return 1 if one failed, or on a GPU exceeded a limit; 128 and a signal's number if it ended it.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu", action="store_true", help="only try the script, in small")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="repeatable; else all")
    parser.add_argument("--json", type=Path, help="default on a GPU: results.json beside this file")
    parser.add_argument("--plot", type=Path, help="default on a GPU: gpu.png beside this file")
    options = parser.parse_args(argv)
    if packages := missing_packages():
        raise SystemExit(f"need {', '.join(packages)}: {INSTALL} in {ROOT}")
    why = "--cpu was given" if options.cpu else lacks_gpu()
    device = "cpu" if why else "cuda"
    sections = options.only or list(SECTIONS)
    if not why and not _COMPILING.isdisjoint(sections) and (tools := missing_compiler()):
        raise SystemExit(f"need {' and '.join(tools)}, such as by {INSTALL_COMPILER}")
    from report import save_plot, show  # of experiments/bench, whose modules import each other

    whole = options.only is None and not why
    results = options.json or (HERE / "results.json" if whole else None)
    plot = options.plot or (HERE / "gpu.png" if whole else None)
    for path in filter(None, (results, plot)):
        if why and path.parent.resolve() == HERE:
            raise SystemExit(
                f"need another folder than {HERE.name} for figures of a CPU: {path.name}"
            )
        refuse_unwritable(path)
    if why:
        print(
            f"On the CPU, in small, since {why}: this tries the script; its figures mean nothing."
        )
    from experiments.gpu.section_process import noted_signals

    described = machine(device)
    with noted_signals() as signals:
        outcomes = measure(sections, device, signals)
        figures = [figure for outcome in outcomes.values() for figure in outcome.figures]
        if signals:
            print(f"Ended by {signals[0].name}; nothing is written.")
            if figures:
                show(figures, described, judged=not why)
            return 128 + signals[0]
        failed = any(outcome.failed for outcome in outcomes.values())
        if results:
            failed |= not is_written(results, lambda path: save(outcomes, described, path))
        show(figures, described, judged=not why)
        limited = [figure for figure in figures if figure.limit]
        if plot:
            failed |= not is_written(plot, lambda path: save_plot(limited, path))
    if failed:
        return 1
    return int(device == "cuda" and any(figure.met is False for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
