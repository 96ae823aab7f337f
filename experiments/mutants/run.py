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
FORECASTS = f"{CORE}/evaluate/forecasts"
SCORED = ("evaluate/test_scores.py",)
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
    f"{FORECASTS}/labels.py": ("evaluate/test_labels.py", *SCORED),
    f"{FORECASTS}/altered_future.py": ("evaluate/test_altered_future.py", "evaluate/test_leaks.py"),
    f"{FORECASTS}/leaks.py": ("evaluate/test_leaks.py",),
    f"{CORE}/learning/skill.py": ("learning/test_skill.py", "evaluate/test_scores.py"),
    f"{CORE}/learning/calibration.py": ("learning/test_calibration.py",),
    f"{CORE}/evaluate/goodput/compare.py": ("evaluate/test_compare.py",),
    f"{FORECASTS}/scores.py": SCORED,
    f"{FORECASTS}/intervals.py": ("evaluate/test_intervals.py", *SCORED),
    f"{FORECASTS}/scoring.py": ("evaluate/test_scoring.py", "evaluate/test_open_loop.py"),
    f"{FORECASTS}/hindcasts.py": ("evaluate/test_hindcasts.py",),
    f"{FORECASTS}/foretelling_columns.py": ("evaluate/test_foretelling_columns.py",),
    f"{FORECASTS}/foretelling.py": ("evaluate/test_foretelling_needs.py",),
    f"{FORECASTS}/foretelling_attributes.py": ("evaluate/test_foretelling_attributes.py",),
    f"{FORECASTS}/foretelling_returns.py": ("evaluate/test_foretelling_returns.py",),
    f"{FORECASTS}/fates.py": ("evaluate/test_fates.py",),
    f"{FORECASTS}/relations.py": ("evaluate/test_relations.py",),
    f"{FORECASTS}/foretelling_events.py": ("evaluate/test_foretelling_events.py",),
    f"{FORECASTS}/foretelling_service.py": ("evaluate/test_foretelling_events.py",),
    f"{CORE}/fitting/time_split.py": ("fitting/test_time_split.py",),
    f"{CORE}/fitting/earlier_part.py": ("fitting/test_earlier_part.py",),
    f"{CORE}/fitting/examples.py": ("fitting/test_examples.py",),
    f"{CORE}/fitting/choose.py": ("fitting/test_choose.py",),
    **{
        f"{CORE}/fitting/{part}.py": ("fitting/test_fit.py", "fitting/test_foretelling_columns.py")
        for part in ("fit", "stages")
    },
    f"{CORE}/fitting/passes.py": (
        "fitting/test_passes.py",
        "fitting/test_fit.py",
    ),
    f"{CORE}/fitting/shared_rows.py": ("fitting/test_shared_rows.py",),
    f"{CORE}/learning/rows.py": (
        "learning/test_rows_and_estimators.py",
        "learning/test_array_parts.py",
    ),
    f"{CORE}/learning/ranking.py": ("learning/test_ranking.py",),
    f"{CORE}/trace/bundle/recorded_values.py": ("evaluate/test_training_trace.py",),
    f"{CORE}/trace/feed/silences.py": ("trace/test_silences.py",),
    **{
        f"{CORE}/fleet/{part}.py": (
            "fleet/test_columns.py",
            "fleet/test_sample_table.py",
            "fleet/test_sample_stretch.py",
        )
        for part in ("intake", "newest", "past", "ring", "rings")
    },
    **{
        f"{CORE}/trace/feed/{part}.py": ("trace/test_feed.py", "trace/test_views.py")
        for part in ("feed", "scrapes", "views")
    },
    f"{CORE}/evaluate/goodput/episode.py": ("evaluate/test_episode.py",),
    f"{CORE}/evaluate/goodput/job.py": ("evaluate/test_job.py",),
    f"{CORE}/simulate/failures.py": ("simulate/test_failures.py",),
    f"{CORE}/simulate/gpu_time.py": ("simulate/test_gpu_time.py",),
}
"""Each module, and which tests are to notice what becomes of it."""

SLOW = ("tests/weaver/test_startup.py", "tests/weaver/test_admission.py")
"""What starts a broker."""

TYPES = [
    sys.executable, "-m", "mypy", "--output", "json", "--no-warn-unused-ignores",
    "--disable-error-code", "no-redef", "--disable-error-code", "has-type",
]  # fmt: skip
"""What mypy rejects is no mutant: it could not be merged."""

COPIED = ["torchloom_policies", "torchloom_predictors", "experiments", "few_examples.py"]
PYTEST = ["-p", "few_examples", "-p", "no:cacheprovider", "-m", "not slow", "--timeout=200"]
"""A test counts as failed after so long a time because the machine may have other work."""

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
    for folder in ("tests", "experiments/formulas"):
        shutil.copytree(ROOT / folder, SCRATCH / folder)
    shutil.copy(ROOT / "pyproject.toml", SCRATCH)
    (SCRATCH / "few_examples.py").write_text(PLUGIN)
    tests = dict.fromkeys(f"tests/{room}" for module in modules for room in MODULES[module])
    lines = {
        "source_paths": [CORE, "torchloom_threadlet"],
        "only_mutate": list(modules),
        "also_copy": COPIED,
        "do_not_mutate_patterns": [r"^\s*log\."],
        "type_check_command": TYPES,
        "pytest_add_cli_args": PYTEST,
        "pytest_add_cli_args_test_selection": [*tests, *(f"--ignore={path}" for path in SLOW)],
    }
    config = "[mutmut]\nuse_setproctitle=false\ntimeout_multiplier=10\ntimeout_constant=1\n"
    for name, values in lines.items():
        config += f"{name}=\n" + "".join(f"  {value}\n" for value in values)
    (SCRATCH / "setup.cfg").write_text(config)


PLUGIN = f"""
import pytest
from hypothesis import Phase, settings

if not hasattr(pytest.Item, "_nodeid"):  # mutmut 3.8 reads it; pytest 9.1 has it no more
    pytest.Item._nodeid = property(lambda item: item.nodeid)


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


def argued(module: str, page: str) -> str:
    """Return what the page says of a module's survivors: the same change may matter in another."""
    parts = [part.partition("\n") for part in page.split("\n### ")]
    own = (text for title, _, text in parts if any(map(module.startswith, title.split("`")[1::2])))
    return "".join(own)


def report(results: dict[str, Any], page: str) -> Iterator[str]:
    """Yield the table, and the survivors that the page does not argue away."""
    yield "| module | mutants | killed | timed out | alive |"
    yield "|---|---|---|---|---|"
    for module, result in results.items():
        killed, late = (result["ends"].get(end, 0) for end in ("killed", "timeout"))
        alive = len(result["alive"])
        yield f"| `{module}` | {killed + late + alive} | {killed} | {late} | {alive} |"
    yield ""
    for module, result in results.items():
        known = argued(module, page)
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
