"""One process is one worker: spawned, forked, and in a notebook cell that runs again."""

import asyncio
import subprocess
import sys
from textwrap import dedent

import nbclient
import nbformat
import psutil
import pytest

from tests.deadlines import DEADLINE_S
from tests.threadlet.conftest import is_sidecar
from torchloom_core.floor.errors import ConfigError
from torchloom_core.wire.messages import Exit, Hello
from torchloom_core.wire.operations import Checkpoint
from torchloom_threadlet import attach

pytestmark = pytest.mark.integration

LOADERS = """
import multiprocessing, sys
import torchloom_threadlet

loom = torchloom_threadlet.attach()


def is_inert(_):
    return loom.inert


if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        print(loom.inert, *pool.map(is_inert, range(2)))
"""

RANKS = """
import multiprocessing, pathlib, sys, time
import torchloom_threadlet


def train(rank):
    loom = torchloom_threadlet.attach(rank=rank)
    while not pathlib.Path("over").exists():
        loom.step()
        time.sleep(0.01)


if __name__ == "__main__":
    ranks = [eval(rank) for rank in sys.argv[2:]]
    context = multiprocessing.get_context(sys.argv[1])
    torchloom_threadlet.attach(rank=0)
    while not pathlib.Path("enrolled").exists():
        time.sleep(0.01)
    others = [context.Process(target=train, args=(rank,)) for rank in ranks]
    for other in others:
        other.start()
    train(0)
    for other in others:
        other.join()
"""


@pytest.fixture
def start_script(tmp_path, join_file, monkeypatch, end_with_sidecars):
    """Return a function that starts a script; its output is in ``out`` and ``err``."""
    started = []
    monkeypatch.setenv("TORCHLOOM_JOIN", str(join_file))

    def start(text, *arguments):
        (tmp_path / "script.py").write_text(text)
        with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
            command = [sys.executable, "script.py", *arguments]
            process = subprocess.Popen(command, cwd=tmp_path, stdout=out, stderr=err)
        started.append(process)
        return process

    yield start
    for process in started:
        end_with_sidecars(process)


async def ended(process):
    return await asyncio.to_thread(process.wait, DEADLINE_S)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
async def test_data_loaders_that_import_the_script_again_do_not_attach(
    weaver, start_script, tmp_path, method
):
    assert await ended(start_script(LOADERS, method)) == 0
    await weaver.event(Exit)
    assert (tmp_path / "out").read_text().split() == ["False", "True", "True"]
    assert (tmp_path / "err").read_text() == ""
    assert len({e.incarnation for e in weaver.events if isinstance(e, Hello)}) == 1


@pytest.mark.parametrize("method", ["spawn", "fork"])
async def test_a_rank_spawned_by_another_attaches_in_its_own_function(
    weaver, start_script, tmp_path, method
):
    process = start_script(RANKS, method, "1")
    await weaver.admit()
    (tmp_path / "enrolled").touch()
    for worker in ("g0-0", "g0-1"):
        await weaver.beat(lambda batch: batch.step > 0, worker)
    (tmp_path / "over").touch()
    assert await ended(process) == 0
    assert (tmp_path / "err").read_text() == ""


async def test_a_process_with_a_taken_name_logs_that_its_rank_is_not_set(
    weaver, start_script, tmp_path
):
    process = start_script(RANKS, "spawn", "None")
    await weaver.admit()
    (tmp_path / "enrolled").touch()
    errors = tmp_path / "err"
    try:
        await weaver.until(lambda: "no rank is set" in errors.read_text())
    except TimeoutError:
        pytest.fail(f"need the line, {len(weaver.joined_on)} joined: {errors.read_text()!r}")
    (tmp_path / "over").touch()
    assert await ended(process) == 0
    (line,) = errors.read_text().splitlines()
    assert "worker g0-0 is already enrolled by another running process" in line
    assert line.endswith("no rank is set: set RANK or TORCHLOOM_RANK, or rank= in attach()")


@pytest.mark.long
async def test_a_notebook_cell_that_runs_again_gets_the_same_loom(
    weaver, tmp_path, join_file, monkeypatch
):
    monkeypatch.setenv("TORCHLOOM_JOIN", str(join_file))
    monkeypatch.chdir(tmp_path)
    attaching = dedent("""
        import os, pathlib, torchloom_threadlet
        before = globals().get("loom")
        loom = torchloom_threadlet.attach(group="g0")
        @loom.on_checkpoint
        def save():
            with open("saves", "a") as saves:
                saves.write("saved ")
        print(os.getpid(), loom is before)
    """)
    other = "torchloom_threadlet.attach(group='g1')"
    steps = dedent("""
        import time
        while not pathlib.Path("saves").exists():
            loom.step()
            time.sleep(0.01)
        print(pathlib.Path("saves").read_text())
    """)
    sources = [attaching, attaching, f"try:\n    {other}\nexcept Exception as e: print(e)", steps]
    sources.append("loom.close()\nloom = torchloom_threadlet.attach(group='g0', node='other')")
    notebook = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, sources)])
    client = nbclient.NotebookClient(notebook, timeout=DEADLINE_S)
    async with client.async_setup_kernel():
        for number, cell in enumerate(notebook.cells[:3]):
            await client.async_execute_cell(cell, number)
        hello = await weaver.admit()
        sidecars = [*filter(is_sidecar, psutil.Process(hello.pid).children(recursive=True))]
        stepping = asyncio.create_task(client.async_execute_cell(notebook.cells[3], 3))
        assert (await weaver.ask(hello, Checkpoint())).status == "applied"
        await stepping
        await client.async_execute_cell(notebook.cells[4], 4)
        assert (await weaver.event(Exit, incarnation=hello.incarnation)).expected
        weaver.enrolment.release("g0-0")
        await weaver.event(Hello, node="other")
    printed = [cell.outputs[0].text.strip() for cell in notebook.cells[:4]]
    assert printed == [
        f"{hello.pid} False",
        f"{hello.pid} True",
        "attach: group: this process is attached already with 'g0', was 'g1'; "
        "to attach anew, call loom.close() first",
        "saved",
    ]
    assert len(sidecars) == 1


def test_after_close_another_loom_can_attach(tmp_path):
    first = attach(tmp_path / "join.json", group="a")
    assert attach(tmp_path / "join.json", group="a") is first
    with pytest.raises(ConfigError, match="already with 'a'"):
        attach(tmp_path / "join.json", group="b")
    first.close()
    second = attach(tmp_path / "join.json", group="b")
    assert (second.group, second.inert) == ("b", False)
    second.close()
