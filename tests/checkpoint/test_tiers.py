"""Where copies are kept, what a save costs, and which tier is due."""

from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.checkpoints.storage import LocalFolder
from torchloom_core.wire.checkpoint_tiers import MEMORY, PATH
from torchloom_threadlet.checkpoint.felt import FeltCosts
from torchloom_threadlet.checkpoint.nodes import Node, copy_of
from torchloom_threadlet.checkpoint.outcomes import Outcomes
from torchloom_threadlet.checkpoint.sources import Sources
from torchloom_threadlet.checkpoint.tiers import Tier, measurements
from torchloom_threadlet.checkpoint.writer.node_memory import NodeMemory
from torchloom_threadlet.checkpoint.writer.orders import TierPlace
from torchloom_threadlet.checkpoint.writer.pace import Pace

FOLDER = "0001-step-0000000004-0123abcd"


def nodes(sizes):
    return [
        Node(name=f"n{rack}-{n}", rack=f"r{rack}") for rack, k in enumerate(sizes) for n in range(k)
    ]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6))
def test_each_node_keeps_one_copy_and_none_of_its_rack_where_that_can_be(sizes):
    all_nodes = nodes(sizes)
    copies = {node.name: copy_of(all_nodes, node.name) for node in all_nodes}
    if len(all_nodes) == 1:
        assert list(copies.values()) == [None]
        return
    assert set(Counter(copy.name for copy in copies.values()).values()) == {1}
    assert all(name != copy.name for name, copy in copies.items())
    if 2 * max(sizes) <= len(all_nodes):
        assert all(copies[node.name].rack != node.rack for node in all_nodes)


def test_a_copy_goes_to_the_other_node_and_descriptions_to_rank_0s(tmp_path):
    here, copy, home = (LocalFolder(tmp_path / name) for name in ("here", "copy", "home"))
    memory = NodeMemory(here.path, copy, home, Pace(), lambda: None)
    memory.write(f"{FOLDER}/rank-1.bin", [b"weights"])
    memory.write(f"{FOLDER}/rank-1.json", [b"{}"])
    assert sorted(here.files(FOLDER)) == sorted(copy.files(FOLDER)) == ["rank-1.bin", "rank-1.json"]
    assert home.files(FOLDER) == ["rank-1.json"]
    memory.remove(FOLDER)
    assert here.folders() == copy.folders() == []


def test_the_copy_of_a_manifest_has_all_descriptions_beside_it(tmp_path):
    home, copy = LocalFolder(tmp_path / "home"), LocalFolder(tmp_path / "copy")
    home.write(f"{FOLDER}/rank-1.json", [b"{}"])  # as another node's rank sends it
    NodeMemory(home.path, copy, None, Pace(), lambda: None).write(
        f"{FOLDER}/manifest.json", [b"{}"]
    )
    assert sorted(copy.files(FOLDER)) == ["manifest.json", "rank-1.json"]


def test_a_copy_that_fails_costs_a_line_and_nothing_here(tmp_path):
    broken = LocalFolder(tmp_path / "file")
    broken.path.write_text("")
    memory = NodeMemory(tmp_path / "here", broken, None, Pace(), lambda: None)
    memory.write(f"{FOLDER}/rank-0.bin", [b"weights"])
    assert memory.files(FOLDER) == ["rank-0.bin"]
    assert "file" in memory.take_problem()
    assert not memory.take_problem()


def test_what_a_save_costs_is_what_its_steps_take_beyond_the_usual():
    felt, now_s = FeltCosts(), 0.0
    for _ in range(20):
        felt.at_boundary(now_s := now_s + 0.1)
    for first in (True, False):  # the first save does not count
        felt.begin([MEMORY, PATH])
        felt.at_boundary(now_s := now_s + 0.3)
        assert felt.end(MEMORY, 0.02, saved=True) == pytest.approx(0.1)
        felt.at_boundary(now_s := now_s + 0.15)
        felt.at_boundary(now_s := now_s + 30.0)  # an evaluation
        assert felt.end(PATH, 0.02, saved=True) == pytest.approx(0.15)
        assert felt.usual_s(PATH) == (None if first else pytest.approx(0.15))


def test_a_save_costs_at_least_what_training_waited_for_it():
    felt = FeltCosts()
    for _ in range(2):
        felt.begin([PATH])
        assert felt.end(PATH, 0.02, saved=True) == 0.0
    assert felt.usual_s(PATH) == 0.02


def test_a_tier_is_due_again_when_its_interval_is_over_and_its_save_too(monkeypatch):
    tier = Tier(TierPlace(name=PATH, place="", keep=1), every_s=10.0)
    begun_s = tier.saved_s
    assert not tier.is_due(begun_s + 9)
    assert tier.is_due(begun_s + 11)
    tier.begin(4, begun_s + 11)
    assert not tier.is_due(begun_s + 30)
    tier.end(4, saved=True)
    assert tier.saved_s == begun_s + 11
    assert tier.is_due(begun_s + 30)


@pytest.mark.parametrize("how", ["give_up", "lose"])
def test_a_save_whose_end_nobody_reports_does_not_hold_up_the_next(how):
    tier, notes = Tier(TierPlace(name=PATH, place="", keep=1), every_s=10.0), []
    loop = SimpleNamespace(note=lambda kind, fields: notes.append((kind, fields.get("tier"))))
    outcomes = Outcomes({PATH: tier}, SimpleNamespace(blocked_s=0.0), loop, 0, lambda: None)
    tier.begin(4, tier.saved_s + 11)
    getattr(outcomes, how)()
    assert tier.is_due(tier.saved_s + 30)
    assert notes == ([("checkpoint_failed", PATH)] if how == "lose" else [])


def test_a_failure_that_spares_a_tier_loses_what_is_newer_than_it_and_those_after_it():
    memory = Tier(TierPlace(name=MEMORY, place="", keep=1), 1.0)
    path = Tier(TierPlace(name=PATH, place="", keep=1), 9.0)
    path.saved_s = memory.saved_s - 50.0
    found = measurements([memory, path])
    assert found["unsaved_work_s"] - found["unsaved_memory_s"] == pytest.approx(50.0)
    memory.saved_s = path.saved_s - 50.0
    found = measurements([memory, path])
    assert found["unsaved_work_s"] == pytest.approx(found["unsaved_memory_s"])


def test_sources_that_answer_faster_come_first(tmp_path):
    class Slow(LocalFolder):
        def open(self, name):
            raise ConnectionError

    fast, slow = LocalFolder(tmp_path / "fast"), Slow(tmp_path / "slow")
    for storage in (fast, slow):
        storage.write(f"{FOLDER}/rank-0.bin", [bytes(1000)])
    absent = LocalFolder(tmp_path / "absent")
    sources = Sources(slow, [[slow], [absent], [fast]], [])
    assert sources.of(FOLDER)[0] is fast
