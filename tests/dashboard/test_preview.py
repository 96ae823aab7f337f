"""A page is shown both arms of a preview at the same steps, and the words that go with them."""

from tests.pieces import preview_note as note
from tests.pieces import take
from torchloom_core.live.dashboard.preview import PreviewShown
from torchloom_core.live.trajectory.preview import Preview
from torchloom_core.wire.preview import Curve, Judgement, Setup
from torchloom_core.wire.standby_task import End

JUDGED = Judgement(
    result="better",
    pairs=5,
    for_change=5,
    over=1,
    difference=-1.0,
    low=-2.0,
    high=-0.5,
    confidence=0.9375,
)


def setup(steps=3):
    return Setup(before={"lr": 0.1}, values={"lr": 0.2}, steps=steps, repeats=2, step_s=0.1)


def curve(repeat, arm, *losses):
    return Curve(repeat=repeat, arm=arm, first=0, losses=losses)


def shown(*pieces):
    preview = Preview()
    for piece in pieces:
        take(preview, note(piece))
    return PreviewShown(preview)


def test_both_arms_are_drawn_at_the_same_steps_with_gaps_where_one_has_none():
    update = shown(
        setup(),
        curve(0, "control", 1.0, 2.0, 3.0),
        curve(1, "control", 3.0, 2.0, 5.0),
        curve(0, "change", 1.0, None),
        curve(1, "change", 2.0),
    ).shown()
    assert update["steps"] == [1, 2, 3]
    assert update["curves"] == [
        [1.0, 2.0, 3.0],
        [2.0, 2.0, 4.0],
        [3.0, 2.0, 5.0],
        [1.0, None, None],
        [1.5, None, None],
        [2.0, None, None],
    ]
    assert (update["worker"], update["points"], update["of"]) == ("v0-0", 5, 9)
    assert update["result"] == ""
    assert ("change", "lr 0.1 -> 0.2") in update["words"]


def test_of_one_whose_beginning_was_not_heard_the_warning_is_said_all_the_same():
    names = [name for name, _ in shown(JUDGED).shown()["words"]]
    assert names == ["change", "verdict", "warning", "tried"]


def test_what_is_new_is_made_up_anew_and_nothing_else():
    preview = Preview()
    board = PreviewShown(preview)
    take(preview, note(setup()))
    first = board.shown()
    assert board.shown() is first
    take(preview, note(JUDGED))
    assert board.shown()["result"] == "better"
    take(preview, note(End(points=5, seconds=1.0)))
    assert ("tried", "5 steps in 1.0 s") in board.shown()["words"]


def test_a_long_curve_is_no_more_than_a_page_has_dashboard_for():
    pieces = [
        Curve(repeat=0, arm=arm, first=first, losses=tuple(float(first + n) for n in range(500)))
        for arm in ("control", "change")
        for first in range(0, 5000, 500)
    ]
    update = shown(setup(5000), *pieces).shown()
    assert len(update["steps"]) <= 300
    assert update["steps"][-1] == 5000
    assert update["curves"][2][-1] == 4999.0
