from tests.trace.small import NODES, bundle, fault
from torchloom_core.lab.evaluate.forecasts.altered_future import OtherFuture
from torchloom_core.lab.trace.bundle.schema import Component
from torchloom_core.lab.trace.feed.feed import Feed
from torchloom_core.lab.trace.feed.watched import labels_from, watch
from torchloom_core.wire.messages import Hello


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


def test_columns_are_numbers_dates_or_words():
    attributes = [
        {"model": "x1", "size_gb": "4000", "installed": "2024-01-01", "cage": 3, "odd": [1]},
        {"model": "x2", "size_gb": "8e3", "installed": "2024-01-02T00:00:00Z", "cage": "3"},
        {"model": "x1", "size_gb": "", "cage": 4},
    ]
    labels = labels_from(attributes)
    assert labels.numbers == ("cage", "installed", "size_gb")
    assert labels.words == ("model",)
    day = labels.of[0]["installed"]
    assert labels.of[1]["installed"] - day == 86_400.0
    assert labels.of[0] == {"model": "x1", "size_gb": 4000.0, "installed": day, "cage": 3.0}
    assert labels.of[2] == {"model": "x1", "cage": 4.0}


def test_labels_equal_or_unique_for_all_are_uninformative_but_stored():
    labels = labels_from([{"maker": "m", "serial": "s1"}, {"maker": "m", "serial": "s2"}])
    assert (labels.numbers, labels.words) == ((), ())
    assert labels.of[1] == {"maker": "m", "serial": "s2"}


def test_a_column_with_one_cell_that_is_no_number_is_one_of_words():
    labels = labels_from([{"slot": "1"}, {"slot": "1"}, {"slot": "1b"}, {"slot": "nan"}])
    assert labels.words == ("slot",)
    assert [of["slot"] for of in labels.of] == ["1", "1", "1b", "nan"]


def test_what_a_component_hangs_on_beside_its_rack_is_a_word_by_its_kind(tmp_path):
    parts = [
        Component(id="p0", kind="power"),
        Component(id="r0", kind="rack", parents=("p0",)),
        Component(id="r1", kind="rack", parents=("p0",)),
        Component(id="a", kind="node", parents=("r0",), gpus=8, extra={"model": "x"}),
        Component(id="b", kind="node", parents=("r1",), gpus=8, extra={"power": "own"}),
    ]
    labels = watch(bundle(tmp_path / "t.tltrace", parts)).labels
    assert labels.of == (
        {"model": "x", "power": "p0", "gpus": 8.0},
        {"power": "own", "gpus": 8.0},
    )


def test_a_hello_of_a_trace_has_the_labels(tmp_path):
    parts = [*NODES[:4], Component(id="b", kind="node", parents=("r0",), extra={"model": "y"})]
    feed = Feed(bundle(tmp_path / "t.tltrace", parts), tick_s=10, repair_s=86_400.0)
    hellos = {m.worker: m.labels for _, m in feed if isinstance(m, Hello)}
    assert hellos == {"a": {"gpus": 2.0}, "b": {"model": "y"}}
