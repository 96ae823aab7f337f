"""``torchloom landscape`` without a Weaver: recorded landscapes and invalid options."""

import json
from functools import partial

import pytest

from tests.pieces import landscape_note
from tests.recorded_epoch import Recorder
from torchloom_core.live.trajectory.layout import run_folder
from torchloom_core.wire.events import Recovered
from torchloom_core.wire.landscape import Cells, Curvature, Line, Plane
from torchloom_core.wire.messages import Hello
from torchloom_core.wire.standby_task import End

pytestmark = pytest.mark.integration

WHO = {"run": "run", "worker": "v0-0", "incarnation": 1}

PIECES = (
    Curvature(
        loss=2.0,
        along="step",
        length=0.5,
        critical_step=0.8,
        sharpness=2.5,
        curvature=4.0,
        of_step=90,
    ),
    Line(points=((0.8, 2.0), (0.0, 2.0), (0.4, 1.5), (1.6, None))),
    Plane(
        ways="path",
        side=3,
        reach=2.0,
        variance_explained=(0.7, 0.2),
        path=((1.0, 0.5, 0.25), (0.0, 0.0, 0.0)),
    ),
    Cells(cells=((0, 0, 3.0), (0, 2, 4.0), (2, 0, 5.0), (2, 2, None))),
    End(points=8, seconds=1.25, why="its 8 points were used up"),
)


note = partial(landscape_note, points=8, of=8)


@pytest.fixture
def trajectory(folder):
    """A trajectory with an older landscape, a newer one, and invalid notes."""
    recorder = Recorder(run_folder(folder.path / ".torchloom", "run"), 1)
    recorder.step(Recovered(epoch=1))
    recorder.step(Hello(**WHO, group="v0", rank=0, node="n0"))
    recorder.issue("c1.0", "v0-0", "survey")
    recorder.step(note(Line(points=((9.0, 9.0),)), "c1.0"))
    recorder.issue("c1.1", "v0-0", "survey")
    for piece in PIECES:
        recorder.step(note(piece))
    recorder.step(note("no json"))
    recorder.step(note(PIECES[0], points="many"))
    recorder.writer.close()
    return run_folder(folder.path / ".torchloom", "run")


def test_the_newest_landscape_is_printed_as_a_table(folder, trajectory):
    result = folder.torchloom("landscape", trajectory)
    assert result.returncode == 0, result.stderr
    for part in (
        "computed on v0-0",
        "step 90 of the run",
        "the optimizer's step; norm 0.5",
        "0.8 x the update",
        "2.5, the update is too long",
        "4 points, 1 not finite; from 1.5 at 0.4 x the update to 2",
        "along 2 checkpoints: 70.0% + 20.0% of their variance, up to 0.25 off the plane",
        "4 points, 1 not finite; from 3 at (-2, -2) to 5",
        "8 points in 1.2 s: its 8 points were used up",
    ):
        assert part in result.stdout, result.stdout


def test_json_has_all_results(folder, trajectory):
    seen = json.loads(folder.torchloom("landscape", trajectory, "--json").stdout)
    assert (seen["command"], seen["worker"], seen["points"]) == ("c1.1", "v0-0", 8)
    assert seen["line"] == [[0.0, 2.0], [0.4, 1.5], [0.8, 2.0], [1.6, None]]
    assert seen["cells"][0] == [0, 0, 3.0]
    assert seen["bend"]["critical_step"] == 0.8


@pytest.mark.long
@pytest.mark.parametrize(("name", "begin"), [("seen.png", b"\x89PNG"), ("seen.svg", b"<?xml")])
def test_a_plot_is_saved(folder, trajectory, name, begin):
    result = folder.torchloom("landscape", trajectory, "--plot", f"new/{name}")
    assert result.returncode == 0, result.stderr
    assert f"wrote new/{name}" in result.stdout
    assert (folder.path / "new" / name).read_bytes().startswith(begin)
