"""A topology's columns beyond a bundle's own become labels of the components."""

from tests.trace.small import NODES, bundle
from torchloom_core.lab.trace.bundle.schema import Component
from torchloom_core.lab.trace.feed.feed import Feed
from torchloom_core.lab.trace.feed.watched import labels_from, watch
from torchloom_core.wire.messages import Hello


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
