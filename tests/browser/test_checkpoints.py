"""What a person sees of a run's checkpoints, by mouse and by keys."""

import re

import pytest

from tests.dashboard.test_checkpoints import note, saved
from tests.dashboard.workers import batch, hello
from tests.integration.browser import CONFIG, Dashboard
from tests.recorded_epoch import Recorder
from torchloom_core.wire.events import Recovered

pytestmark = [pytest.mark.integration, pytest.mark.long]


@pytest.fixture(scope="module")
def run(start_run):
    return start_run(CONFIG + "[costs]\ngpus_per_worker = 8\n")


def test_saves_failures_and_missing_copies_of_a_recorded_run_are_seen(tmp_path, run, new_tab):
    recorder = Recorder(tmp_path / "record", 1)
    recorder.step(Recovered(epoch=1))
    recorder.step(hello())
    for step in (10, 20, 30):
        recorder.step(saved(step))
        recorder.step(saved(step, "memory"))
    recorder.step(note("failed", tier="path", step=40, why="<b>no space</b>"))
    recorder.step(note("not_copied", tier="memory", step=30, why="node2 is gone"))
    recorder.step(batch([{"unsaved_work_s": 7.0, "unsaved_memory_s": 2.0}], step=44))
    recorder.writer.close()
    past = Dashboard(run, 1, tmp_path / "record")
    tab = new_tab()
    tab.page.goto(past.links[-1])
    card = tab.page.get_by_role("region", name="Checkpoints")
    row = card.get_by_role("row", name=re.compile("^path "))
    row.get_by_text("3 saved, 1 not saved").wait_for()
    row.get_by_text(re.compile("^step 30, .* ago, stored in 1.5 s$")).wait_for()
    row.get_by_text("7.0 s, 56 GPU-s").wait_for()
    row.get_by_text("2.0 s, measured").wait_for()
    card.get_by_text("path, step 40: not saved: <b>no space</b>").wait_for()
    card.get_by_text("memory, step 30: no copy on another node: node2 is gone").wait_for()
    card.get_by_role("group", name="path").get_by_role("button").last.focus()
    tab.page.keyboard.press("Home")
    tab.page.keyboard.press("Enter")
    card.get_by_role("listitem").get_by_text("step 10: saved").first.wait_for()
    past.end()


def test_a_run_without_checkpoints_shows_how_to_save_some(tmp_path, run, new_tab):
    recorder = Recorder(tmp_path / "record", 1)
    recorder.step(Recovered(epoch=1))
    recorder.step(hello())
    recorder.writer.close()
    past = Dashboard(run, 2, tmp_path / "record")
    tab = new_tab()
    tab.page.goto(past.links[-1])
    card = tab.page.get_by_role("region", name="Checkpoints")
    card.get_by_text("loom.checkpoints(model, optimizer, path=...)").wait_for()
    assert card.get_by_role("table").is_hidden()
    past.end()
