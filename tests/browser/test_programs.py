"""What a person sees of a program that is split over workers."""

import pytest

from tests.dashboard.workers import hello
from tests.integration.browser import CONFIG, Dashboard
from tests.kernel.programs import OFFER, program_seen
from tests.recorded_epoch import Recorder
from torchloom_core.wire.events import Recovered
from torchloom_core.wire.generations import Join

pytestmark = [pytest.mark.integration, pytest.mark.long]

PROGRAM = Join(
    worker="w0", incarnation=1, store="a:1", layers=4, replicas=2, micro_batches=4,
    layer_bytes=(10**6,) * 4,
)  # fmt: skip
NODES = {f"w{n}": f"node-{n}" for n in range(5)}


@pytest.fixture(scope="module")
def run(start_run):
    return start_run(CONFIG)


def test_a_loss_is_seen_with_its_risk_history_and_what_would_follow(tmp_path, run, new_tab):
    recorder = Recorder(tmp_path / "record", 1)
    recorder.step(Recovered(epoch=1))
    recorder.step(hello())
    own = {"program": PROGRAM, "nodes": NODES, "layer_s": (0.01,) * 4}
    recorder.step(program_seen(**own))
    recorder.step(program_seen(phase="stopping", **own))
    recorder.step(
        program_seen(
            generation=2, workers=("w0", "w1"), standbys=("w2",), why="replica 0: 1 stage",
            cause="<b>w3</b> has ended", offer=OFFER, slowness={"w1": 2.0}, **own,
        )
    )  # fmt: skip
    recorder.writer.close()
    past = Dashboard(run, 1, tmp_path / "record")
    tab = new_tab()
    tab.page.goto(past.links[-1])
    card = tab.page.get_by_role("region", name="Pipeline")
    card.get_by_text("Role trainer: generation 2").wait_for()
    card.get_by_text("Each layer has two copies at least.").wait_for()
    card.get_by_text("node-1").wait_for()
    card.get_by_text("2.0 times as slow").wait_for()
    card.get_by_text("A planned change is possible: w4 is stage 1").wait_for()
    card.get_by_text("<b>w3</b> has ended; workers waited").wait_for()
    card.get_by_text("w2 on node-2").wait_for()
    row = card.get_by_role("row").filter(has_text="w1")
    row.get_by_text("replica 1: w2 for w1").wait_for()
    past.end()


def test_layers_and_experts_with_one_copy_are_shown_as_a_risk(tmp_path, run, new_tab):
    recorder = Recorder(tmp_path / "record", 1)
    recorder.step(Recovered(epoch=1))
    recorder.step(hello())
    recorder.step(program_seen(workers=("w0", "w0"), standbys=(), program=PROGRAM))
    recorder.writer.close()
    past = Dashboard(run, 2, tmp_path / "record")
    tab = new_tab(viewport={"width": 390, "height": 800}, color_scheme="dark")
    tab.page.goto(past.links[-1])
    card = tab.page.get_by_role("region", name="Pipeline")
    card.get_by_text("4 of 4 layers have one copy").wait_for()
    card.get_by_text("No standby").wait_for()
    card.get_by_text("the program ends: layers would be lost").wait_for()
    past.end()
