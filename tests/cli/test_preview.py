"""``torchloom preview`` without a Weaver: recorded previews and invalid options."""

import json
from functools import partial

import pytest

from tests.pieces import preview_note
from tests.recorded_epoch import Recorder
from torchloom_core.live.trajectory.layout import run_folder
from torchloom_core.wire.events import Recovered
from torchloom_core.wire.messages import Hello, Note
from torchloom_core.wire.preview import Curve, Extrapolation, Judgement, Setup
from torchloom_core.wire.standby_task import End

pytestmark = pytest.mark.integration

WHO = {"run": "run", "worker": "v0-0", "incarnation": 1}

PIECES = (
    Setup(before={"lr": 0.1}, values={"lr": 2.0}, steps=4, repeats=5, step_s=0.02, of_step=90),
    Curve(repeat=0, arm="control", first=0, losses=(2.0, 1.5)),
    Curve(repeat=0, arm="control", first=2, losses=(1.25, 1.0)),
    Curve(repeat=0, arm="change", first=0, losses=(2.0, 4.0, None)),
    Judgement(
        result="few",
        pairs=1,
        for_change=0,
        over=1,
        difference=None,
        low=None,
        high=None,
        confidence=0.0,
        diverged=1,
    ),
    Curve(repeat=1, arm="control", first=0, losses=(3.0, 2.5, 2.25, 2.0)),
    Curve(repeat=1, arm="change", first=0, losses=(3.0, 2.5, 2.75, 3.0)),
    Judgement(
        result="worse",
        pairs=5,
        for_change=0,
        over=1,
        difference=1.0,
        low=0.5,
        high=1.25,
        confidence=0.9375,
        ahead=Extrapolation(steps=8, control=(0.9, 1.0, 1.1), change=None),
    ),
    End(points=44, seconds=1.25, why="its 1.25 s were used up"),
)


note = partial(preview_note, points=44, of=44)


@pytest.fixture
def trajectory(folder):
    """A trajectory with an older preview, a newer one, a landscape, and invalid notes."""
    recorder = Recorder(run_folder(folder.path / ".torchloom", "run"), 1)
    recorder.step(Recovered(epoch=1))
    recorder.step(Hello(**WHO, group="v0", rank=0, node="n0"))
    recorder.issue("c1.0", "v0-0", "rehearse")
    recorder.step(note(Curve(repeat=0, arm="control", first=0, losses=(9.0,)), "c1.0"))
    recorder.issue("c1.1", "v0-0", "rehearse")
    for piece in PIECES:
        recorder.step(note(piece))
    recorder.step(note("no json"))
    recorder.step(note(PIECES[0], points="many"))
    look = {"command": "c1.2", "points": 1, "of": 1, "piece": '{"part":"line","points":[]}'}
    recorder.step(Note(**WHO, kind="landscape", fields=look))
    recorder.writer.close()
    return run_folder(folder.path / ".torchloom", "run")


def test_the_newest_preview_is_printed_as_a_table(folder, trajectory):
    result = folder.torchloom("preview", trajectory)
    assert result.returncode == 0, result.stderr
    for part in (
        "preview on v0-0, against a control without the change",
        "from step 90 of the run change lr 0.1 -> 2.0",
        "worse: the change moves the loss by +1 at the last step, the median of 5 pairs (+0.5 to "
        "+1.25 with probability 0.94), lower in 0",
        "at step 8, extrapolated from both curves: 1 (0.9 to 1.1) without the change, not finite "
        "with it",
        "valid for 4 steps only",
        "44 steps in 1.2 s: its 1.25 s were used up",
    ):
        assert part in " ".join(result.stdout.split()), result.stdout


def test_json_has_all_results(folder, trajectory):
    seen = json.loads(folder.torchloom("preview", trajectory, "--json").stdout)
    assert (seen["command"], seen["worker"], seen["points"]) == ("c1.1", "v0-0", 44)
    assert seen["curves"][:2] == [
        {"repeat": 0, "arm": "change", "losses": [2.0, 4.0, None]},
        {"repeat": 0, "arm": "control", "losses": [2.0, 1.5, 1.25, 1.0]},
    ]
    assert seen["judgement"]["result"] == "worse"
    assert seen["setup"]["before"] == {"lr": 0.1}
    assert seen["words"]["warning"].startswith("valid for 4 steps only")


@pytest.mark.long
@pytest.mark.parametrize(("name", "begin"), [("seen.png", b"\x89PNG"), ("seen.svg", b"<?xml")])
def test_a_plot_is_saved(folder, trajectory, name, begin):
    result = folder.torchloom("preview", trajectory, "--plot", f"new/{name}")
    assert result.returncode == 0, result.stderr
    assert f"wrote new/{name}" in result.stdout
    assert (folder.path / "new" / name).read_bytes().startswith(begin)


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ("", 2, "preview: need KNOB=VALUE or the folder of a trajectory, was nothing"),
        ("lr=1 momentum", 2, "preview: need a value after 'momentum', was nothing"),
        ("=1", 2, "preview: need KNOB=VALUE, was '=1'"),
        ("lr=1 lr=2", 2, "preview: 'lr' is given twice"),
        ("lr=1 --steps 0", 2, ">= 1"),
        ("lr=1 --steps 10001", 2, "<= 10000"),
        ("lr=1 --steps 3000 --repeats 4", 2, "preview: steps x repeats: need at most 10000, was"),
        ("lr=1 --repeats 51", 2, "<= 50"),
        ("lr=1 --for 0s", 2, "--for: need a duration such as 30s"),
        ("lr=1 --for 2h", 2, "--for: need at most 1h, was 7200 s"),
        ("lr=1 --plot seen.txt", 2, "seen.txt: need a file .png or .svg, was .txt"),
        ("nowhere", 4, "nowhere: no such folder: need the folder of a trajectory"),
        ("lr=1", 3, "no Weaver found: give --url"),
    ],
)
def test_invalid_options_are_one_line(folder, words, status, message):
    result = folder.torchloom("preview", *words.split())
    assert result.returncode == status, result.stderr
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_trajectory_without_a_preview_is_one_line(folder):
    root = run_folder(folder.path / ".torchloom", "run")
    recorder = Recorder(root, 1)
    recorder.step(Recovered(epoch=1))
    recorder.writer.close()
    result = folder.torchloom("preview", root)
    assert result.returncode == 4
    assert "contains no preview" in result.stderr
