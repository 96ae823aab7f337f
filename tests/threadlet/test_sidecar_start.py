"""A sidecar starts wherever its trainer runs: in a frozen application, from a vendored folder."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import nats
import pytest

import torchloom_core
import torchloom_threadlet
from tests.deadlines import DEADLINE_S
from tests.waiting import eventually
from torchloom_core.wire.messages import Exit
from torchloom_threadlet.trainer.sidecar_start import find_interpreter

pytestmark = pytest.mark.integration

APPLICATION = """
import os, sys, time
open("starts", "a").write("started ")
sys.path += {path}
sys.executable, sys.frozen = {executable!r}, {frozen}
import torchloom_threadlet

loom = torchloom_threadlet.attach()
while not os.path.exists("over"):
    loom.step()
    time.sleep(0.01)
"""


def packages(*modules):
    return [str(Path(module.__file__).parents[1]) for module in modules]


ALL = packages(torchloom_core, torchloom_threadlet, nats)


class Application:
    """A program with an embedded Python, like a frozen one."""

    def __init__(self, folder, join_file, name, path=ALL, *, frozen=False):
        self.folder = folder
        program = folder / name
        text = APPLICATION.format(path=path, executable=str(program), frozen=frozen)
        (folder / "application.py").write_text(text)
        base = getattr(sys, "_base_executable", sys.executable)
        program.write_text(f'#!/bin/sh\nexec {base} "{folder}/application.py"\n')
        program.chmod(0o755)
        with (folder / "err").open("w") as err:
            self.process = subprocess.Popen(
                [program],
                cwd=folder,
                stderr=err,
                env=os.environ | {"TORCHLOOM_JOIN": str(join_file)},
            )

    async def ended(self, what):
        """End it once ``what()`` is true; return how often it was started."""
        await eventually(what)
        (self.folder / "over").touch()
        assert await asyncio.to_thread(self.process.wait, DEADLINE_S) == 0
        return (self.folder / "starts").read_text().split()

    @property
    def output(self):
        return (self.folder / "err").read_text().splitlines()


@pytest.mark.parametrize("frozen", [True, False])
async def test_an_application_with_embedded_python_is_started_once(
    weaver, tmp_path, join_file, frozen
):
    application = Application(tmp_path, join_file, "application", frozen=frozen)
    assert await application.ended(lambda: weaver.telemetry) == ["started"]
    assert (await weaver.event(Exit)).status == 0
    assert application.output == []


@pytest.mark.long
async def test_an_application_mistaken_for_python_starts_no_chain_and_logs_what_to_set(
    weaver, tmp_path, join_file
):
    application = Application(tmp_path, join_file, "python3")
    starts = await application.ended(
        lambda: "trains without the Weaver" in "".join(application.output)
    )
    assert len(starts) == 1 + 5  # the number of attempts to start a sidecar
    assert len([line for line in application.output if "but is a trainer" in line]) == 5
    assert "g0-0 trains without the Weaver: its sidecar does not start" in application.output[-1]
    assert "TORCHLOOM_PYTHON" in application.output[-1]


@pytest.mark.long
async def test_a_sidecar_with_a_missing_package_is_given_up_after_one_line(
    weaver, tmp_path, join_file
):
    vendored = tmp_path / "vendored"
    vendored.mkdir()
    for module in (torchloom_core, torchloom_threadlet, msgspec):
        folder = Path(module.__file__).parent
        (vendored / folder.name).symlink_to(folder)
    application = Application(tmp_path, join_file, "application", [str(vendored)], frozen=True)
    starts = await application.ended(lambda: "does not start" in "".join(application.output))
    assert starts == ["started"]
    (unknown, line) = application.output
    assert "no installed package has this operation" in unknown  # a folder of code alone has none
    assert "its sidecar does not start (ModuleNotFoundError: No module named 'nats'" in line
    assert line.endswith("Set TORCHLOOM_PYTHON to an interpreter in which torchloom is installed")


def test_without_an_interpreter_one_line_says_what_to_set(monkeypatch, caplog, tmp_path):
    for name in ("executable", "_base_executable"):
        monkeypatch.setattr(sys, name, "/opt/app/trainer")
    for name in ("exec_prefix", "base_exec_prefix"):
        monkeypatch.setattr(sys, name, "/opt/app")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_interpreter() == ""
    (line,) = caplog.messages
    assert "(sys.executable is '/opt/app/trainer'); set TORCHLOOM_PYTHON to a python3" in line
    monkeypatch.undo()
    assert find_interpreter({}) == sys.executable
    assert find_interpreter({"TORCHLOOM_PYTHON": "/bin/sh"}) == "/bin/sh"
