"""Run the tests of frameworks' adapters with each framework's oldest and newest version.

Each version has an environment of its own, which is removed afterwards. The results go into the
table of docs/integrations/versions.md, whose other rows stay.
"""

import argparse
import datetime
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build/frameworks"
PAGE = ROOT / "docs/integrations/versions.md"
TIMEOUT_S = 1800

# What is installed: the oldest version that the extra allows, and the newest that was tried.
FRAMEWORKS = {
    "lightning": ("lightning", "2.6.0", "2.6.6"),
    "transformers": ("transformers", "5.20.0", "5.24.0"),
    "accelerate": ("accelerate", "1.13.0", "1.15.0"),
    "ray": ("ray", "2.60.0", "2.60.0"),
    "deepspeed": ("deepspeed", "0.19.8", "0.19.8"),
    "torchtitan": ("torchtitan", "0.3.0", "0.3.0"),
    "monarch": ("torchmonarch", "0.7.0", "0.7.0"),
    "nvrx": ("nvidia-resiliency-ext", "0.4.1", "0.4.1"),
}


def pip(environment: Path, *arguments: str) -> None:
    """Install into an environment, or end with what pip said."""
    command = [environment / "bin/python", "-m", "pip", "--disable-pip-version-check", "install"]
    done = subprocess.run([*command, "--quiet", *arguments], cwd=ROOT, check=False)
    if done.returncode:
        raise SystemExit(f"pip install {' '.join(arguments)}: failed")


def install(name: str, version: str, torch: str) -> Path:
    """Make the environment of one version."""
    package, *_ = FRAMEWORKS[name]
    environment = BUILD / f"{name}-{version}"
    shutil.rmtree(environment, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    build = ["hatchling", "setuptools", "wheel", "py-cpuinfo", "ninja"]
    pip(environment, torch, *build)  # some look for torch as they are built
    extras = f".[adapter-tests,{name}]"
    pip(environment, "--no-build-isolation", torch, f"{package}=={version}", "-e", extras)
    return environment


def test(name: str, environment: Path) -> str:
    """Run one framework's tests, and return what pytest counted."""
    start_s = time.monotonic()
    own = sorted(str(path) for path in (ROOT / "tests/adapters").glob(f"test_{name}*.py"))
    files = [*own, "tests/docs/test_attached_frameworks.py"]
    command = [environment / "bin/python", "-m", "pytest", *files]
    command += ["-k", name, "-m", "", "-p", "no:cacheprovider"]
    own_first = os.pathsep.join([str(environment / "bin"), os.environ["PATH"]])
    env = os.environ | {"PATH": own_first, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as running:
        try:
            printed, _ = running.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGINT)  # pytest's fixtures end what they started
            print(running.communicate()[0][-6000:])
            return f"did not end | {TIMEOUT_S // 60}"
    print(printed[-6000:])
    counted = re.search(r"\d+ (?:passed|failed|error|skipped).*(?= in [\d.:]+s)", printed)
    tests = re.sub(r", \d+ deselected", "", counted[0]) if counted else "did not run"
    took_min = (time.monotonic() - start_s) / 60
    return f"{tests} | {took_min:.0f}"


def write(name: str, version: str, row: str) -> None:
    """Put a row into the page's table, in the order of FRAMEWORKS."""
    before, after = PAGE.read_text(encoding="utf-8").split("|---|---|---|---|---|---|\n")
    found = dict.fromkeys(f"{n} {v}" for n, (_, *two) in FRAMEWORKS.items() for v in two)
    for line in after.splitlines():
        other, others_version, *_ = (cell.strip() for cell in line.strip("|").split("|"))
        found[f"{other} {others_version}"] = line
    found[f"{name} {version}"] = row
    table = "".join(f"{line}\n" for line in found.values() if line)
    text = f"{before}|---|---|---|---|---|---|\n{table}"
    PAGE.write_text(text, encoding="utf-8")


def main() -> None:
    """Test the versions, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("frameworks", nargs="*", help="all, if none is named")
    parser.add_argument("--torch", required=True, help="what pip installs, as torch==2.13.0+cpu")
    options = parser.parse_args()
    if unknown := set(options.frameworks) - set(FRAMEWORKS):
        parser.error(f"no such framework: {', '.join(unknown)}; there are {', '.join(FRAMEWORKS)}")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    failed = []
    for name in options.frameworks or FRAMEWORKS:
        _, oldest, newest = FRAMEWORKS[name]
        for version in dict.fromkeys([oldest, newest]):
            print(f"{name} {version}", flush=True)
            environment = install(name, version, options.torch)
            counted = test(name, environment)
            today = datetime.datetime.now(datetime.UTC).date()
            write(name, version, f"| {name} | {version} | {python} | {counted} | {today} |")
            if "passed" not in counted or "failed" in counted or "error" in counted:
                failed.append(f"{name} {version}")
            shutil.rmtree(environment)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
