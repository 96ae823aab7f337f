from tests.trace.small import NODES, bundle, fault
from torchloom_core.lab.evaluate.forecasts.altered_future import OtherFuture
from torchloom_core.lab.trace.bundle.schema import Component
from torchloom_core.lab.trace.feed.watched import watch


def test_nodes_are_watched_where_there_are_any(tmp_path):
    watched = watch(bundle(tmp_path / "b", NODES))
    assert (watched.ids, watched.kind) == (("a", "b"), "node")
    assert watched.node == ("a", "b")
    assert watched.rack == ("r0", "r0")
    assert watched.gpus == (2, 0)


def test_an_event_touches_the_node_above_or_the_nodes_below(tmp_path):
    nic = Component(id="a/nic", kind="nic", parents=("a", "s0"))
    switch = Component(id="s0", kind="switch", parents=("r0",))
    watched = watch(bundle(tmp_path / "b", [*NODES, switch, nic]))
    assert watched.rows_of("b") == (1,)
    assert watched.rows_of("a/gpu-1") == (0,)
    assert watched.rows_of("r0") == (0, 1)
    assert watched.rows_of("s0") == (0,)
    assert watched.rows_of("elsewhere") == ()


def test_without_a_topology_every_named_component_is_a_node(tmp_path):
    watched = watch(bundle(tmp_path / "b", [fault(1, "n7")], [(1, "n3", "x", 1.0)]))
    assert (watched.ids, watched.kind, watched.rack) == (("n3", "n7"), "node", ("", ""))
    assert watched.rows_of("n7") == (1,)


def test_without_nodes_the_kind_that_most_is_about_is_watched(tmp_path):
    parts = [Component(id=f"r{n}", kind="rack") for n in range(5)]
    parts += [Component(id=f"d{n}", kind="disk", parents=("r0",)) for n in range(2)]
    watched = watch(bundle(tmp_path / "b", [*parts, fault(1, "d0")]))
    assert (watched.kind, watched.ids, watched.rack) == ("disk", ("d0", "d1"), ("r0", "r0"))
    assert watched.node == ("d0", "d1")


def test_without_a_rack_what_is_nearest_above_and_no_node_is_the_group(tmp_path):
    parts = [
        Component(id="row", kind="row"),
        Component(id="cage", kind="cage", parents=("row",)),
        Component(id="host", kind="host", parents=("cage",)),
        Component(id="alone", kind="host"),
        Component(id="racked", kind="host", parents=("cage", "r")),
        Component(id="r", kind="rack"),
    ]
    events = [fault(1, name) for name in ("host", "alone", "racked")]
    watched = watch(bundle(tmp_path / "b", [*parts, *events]))
    assert watched.ids == ("alone", "host", "racked")
    assert watched.rack == ("", "cage", "r")


def test_listed_gpus_take_precedence_over_counting(tmp_path):
    parts = [Component(id="a", kind="node", gpus=8), Component(id="g", kind="gpu", parents=("a",))]
    assert watch(bundle(tmp_path / "b", parts)).gpus == (8,)


def test_a_circle_of_parents_does_no_harm(tmp_path):
    parts = [
        Component(id="a", kind="node", parents=("r",)),
        Component(id="r", kind="rack", parents=("a",)),
    ]
    assert watch(bundle(tmp_path / "b", parts)).rows_of("r") == (0,)


def test_what_is_watched_of_a_bundle_is_found_once(tmp_path):
    trace = bundle(tmp_path / "b", NODES)
    assert watch(trace) is watch(trace)
    assert watch(OtherFuture(trace, 0)) is not watch(trace)
