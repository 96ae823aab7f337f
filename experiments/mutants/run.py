"""Change the kernel's code in one place at a time and see whether a quick test notices.

mutmut makes the mutants, in a folder of their own, and runs against each the tests that reach it.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SCRATCH = ROOT / "build" / "mutants"

CORE = "torchloom_core"
MODULES = {
    f"{CORE}/kernel/kernel.py": ("kernel", "weaver"),
    f"{CORE}/kernel/execution.py": ("kernel", "weaver"),
    f"{CORE}/fleet/pause_hold.py": ("kernel", "weaver"),
    f"{CORE}/dispatch/commands.py": ("kernel", "weaver"),
    f"{CORE}/kept.py": ("kernel", "weaver"),
    **{
        f"{CORE}/kernel/actions/{kind}.py": ("kernel", "weaver")
        for kind in ("checkpoint", "cordon", "drain", "knob", "migrate", "pause", "resume", "run")
    },
    f"{CORE}/fleet/desired_knobs.py": ("kernel", "weaver"),
    f"{CORE}/dispatch/answers.py": ("kernel",),
    f"{CORE}/kernel/arbiter/arbiter.py": ("kernel", "weaver"),
    f"{CORE}/kernel/arbiter/rails.py": ("kernel",),
    f"{CORE}/weaver/outbox.py": ("weaver",),
    f"{CORE}/weaver/recovery.py": ("weaver", "kernel"),
    f"{CORE}/weaver/operator_service.py": ("weaver",),
    f"{CORE}/transport/security/enrolment.py": ("transport/test_enrolment.py",),
    f"{CORE}/transport/security/credentials.py": ("transport/test_rights.py",),
    f"{CORE}/transport/security/rights.py": ("transport/test_rights.py",),
    "torchloom_threadlet/trainer/command_inbox.py": ("threadlet/test_command_inbox.py",),
}
"""Each module, and which tests are to notice what becomes of it."""

SLOW = ("tests/weaver/test_startup.py", "tests/weaver/test_admission.py")
"""What starts a broker."""

TYPES = [
    sys.executable, "-m", "mypy", "--output", "json", "--no-warn-unused-ignores",
    "--disable-error-code", "no-redef", "--disable-error-code", "has-type",
]  # fmt: skip
"""What mypy rejects is no mutant: it could not be merged."""

FEW = 15
"""Examples of a property; its test in earnest draws up to ten times as many."""


def lay_out(modules: Iterable[str]) -> None:
    """Copy the packages side by side, with a config for mutmut and a plugin for pytest."""
    shutil.rmtree(SCRATCH, ignore_errors=True)
    SCRATCH.mkdir(parents=True)
    packages = [CORE, "threadlet/torchloom_threadlet", "policies/torchloom_policies",
                "predictors/torchloom_predictors"]  # fmt: skip
    for package in packages:
        shutil.copytree(ROOT / package, SCRATCH / Path(package).name)
    shutil.copytree(ROOT / "tests", SCRATCH / "tests")
    shutil.copy(ROOT / "pyproject.toml", SCRATCH)
    (SCRATCH / "few_examples.py").write_text(PLUGIN)
    tests = dict.fromkeys(f"tests/{room}" for module in modules for room in MODULES[module])
    lines = {
        "source_paths": [CORE, "torchloom_threadlet"],
        "only_mutate": list(modules),
        "also_copy": ["torchloom_policies", "torchloom_predictors", "few_examples.py"],
        "do_not_mutate_patterns": [r"^\s*log\."],
        "type_check_command": TYPES,
        "pytest_add_cli_args": ["-p", "few_examples", "-p", "no:cacheprovider", "--timeout=20"],
        "pytest_add_cli_args_test_selection": [*tests, *(f"--ignore={path}" for path in SLOW)],
    }
    config = "[mutmut]\nuse_setproctitle=false\ntimeout_multiplier=10\ntimeout_constant=1\n"
    for name, values in lines.items():
        config += f"{name}=\n" + "".join(f"  {value}\n" for value in values)
    (SCRATCH / "setup.cfg").write_text(config)


PLUGIN = f"""
from hypothesis import Phase, settings


def pytest_collection_modifyitems(items):
    for item in items:
        inner = getattr(getattr(item, "obj", None), "hypothesis", None)
        if inner is not None:
            mine = item.obj._hypothesis_internal_use_settings
            item.obj._hypothesis_internal_use_settings = settings(
                mine, max_examples={FEW}, derandomize=True, database=None,
                phases=(Phase.explicit, Phase.generate),
            )
"""


def report(results: dict[str, Any], known: str) -> Iterator[str]:
    """Yield the table, and the survivors that ``known`` does not name."""
    yield "| module | mutants | killed | timed out | alive |"
    yield "|---|---|---|---|---|"
    for module, result in results.items():
        killed, late = (result["ends"].get(end, 0) for end in ("killed", "timeout"))
        alive = len(result["alive"])
        yield f"| `{module}` | {killed + late + alive} | {killed} | {late} | {alive} |"
    yield ""
    for module, result in results.items():
        yield from (f"{module}: {mutant}" for mutant in result["alive"] if mutant not in known)


def main() -> None:
    """Run mutmut over the modules that were asked for, and say what survives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module", nargs="*", help="default: all")
    asked = parser.parse_args()
    lay_out(asked.module or list(MODULES))
    mutate = [sys.executable, HERE / "mutate.py"]
    with (SCRATCH / "mutmut.log").open("w") as log:
        env = os.environ | {"MYPYPATH": "."}
        subprocess.run(mutate, cwd=SCRATCH, env=env, check=True, stdout=log, stderr=log)
    results = json.loads((SCRATCH / "results.json").read_text())
    print("\n".join(report(results, (HERE / "README.md").read_text())))


if __name__ == "__main__":
    main()
