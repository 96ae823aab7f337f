"""Conditions and events of Kubernetes' nodes become faults and actions."""

import json

import pytest

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import TraceError
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.importers.kubernetes import import_kubernetes
from torchloom_core.lab.trace.validation.validate import validate
from torchloom_core.testing import ImporterContract

T0_NS = 1_767_520_800 * SECOND_NS  # 2026-01-04T10:00:00Z
MINUTE_NS = 60 * SECOND_NS


def at(minute):
    return f"2026-01-04T{10 + minute // 60}:{minute % 60:02}:00Z"


def node(name, *conditions, gpus="8", taints=()):
    return {
        "kind": "Node",
        "metadata": {"name": name, "creationTimestamp": at(0)},
        "spec": {"taints": list(taints)},
        "status": {
            "capacity": {"cpu": "96", "nvidia.com/gpu": gpus},
            "conditions": [
                {"type": kind, "status": status, "reason": reason, "lastTransitionTime": at(minute)}
                for kind, status, reason, minute in conditions
            ],
        },
    }


def event(name, reason, minute, *, kind="Node", type="Normal", host="", until=None):
    return {
        "kind": "Event",
        "involvedObject": {"kind": kind, "name": name},
        "reason": reason,
        "type": type,
        "message": f"{reason} of {name}",
        "source": {"component": "kubelet", "host": host},
        "firstTimestamp": at(minute),
        "lastTimestamp": at(minute if until is None else until),
    }


def imported(folder, *objects, indent=2):
    text = json.dumps({"kind": "List", "items": objects}, indent=indent)
    (folder / "cluster.json").write_text(text)
    import_kubernetes(folder / "cluster.json", folder / "out.tltrace")
    assert not validate(folder / "out.tltrace").faults
    return Bundle.open(folder / "out.tltrace")


def test_a_node_that_is_not_ready_is_a_fault_until_it_is(tmp_path):
    opened = imported(
        tmp_path,
        event("n1", "NodeNotReady", 5),
        event("n1", "NodeReady", 9),
        node("n1", ("Ready", "True", "KubeletReady", 9)),
        node("n2", ("Ready", "Unknown", "NodeStatusUnknown", 20)),
        node("n3", ("Ready", "True", "KubeletReady", 0), gpus="4"),
    )
    first, second = opened.events()
    assert (first.component, first.kind, first.fatal) == ("n1", "not_ready", True)
    assert (first.t_event, first.t_resolved) == (T0_NS + 5 * MINUTE_NS, T0_NS + 9 * MINUTE_NS)
    assert (second.component, second.t_resolved) == ("n2", None)
    assert {part.id: part.gpus for part in opened.topology()} == {"n1": 8, "n2": 8, "n3": 4}


def test_conditions_of_the_problem_detector_warn_and_an_eviction_ends_the_pod(tmp_path):
    opened = imported(
        tmp_path,
        node("n1", ("KernelDeadlock", "True", "TaskHung", 3), ("MemoryPressure", "False", "", 1)),
        event("n1", "OOMKilling", 4, type="Warning"),
        event("trainer-0", "Evicted", 6, kind="Pod", type="Warning", host="n1"),
        event("trainer-1", "Pulled", 7, kind="Pod", host="n1"),
        event("n1", "Rebooted", 8, type="Warning"),
    )
    found = [(one.kind, one.fatal, one.follows) for one in opened.events()]
    assert found == [
        ("KernelDeadlock", False, "component"),
        ("OOMKilling", False, "component"),
        ("evicted", True, "unknown"),
        ("rebooted", True, "component"),
    ]
    assert opened.events()[2].extra["pod"] == "trainer-0"


def test_a_cordon_is_an_action_and_an_object_per_line_is_read(tmp_path):
    lines = [
        node("n1", taints=[{"key": "node.kubernetes.io/unschedulable", "timeAdded": at(2)}]),
        event("n1", "NodeSchedulable", 30),
    ]
    (tmp_path / "watch.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    import_kubernetes(tmp_path / "watch.jsonl", tmp_path / "out.tltrace")
    (action,) = Bundle.open(tmp_path / "out.tltrace").actions()
    assert (action.component, action.kind) == ("n1", "drain")
    assert (action.t_event, action.t_end) == (T0_NS + 2 * MINUTE_NS, T0_NS + 30 * MINUTE_NS)


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        ({"kind": "Pod"}, r"cluster\.json:1: items\[0\]: need a Node or an Event, was 'Pod'"),
        (node("n1", ("Ready", "Maybe", "", 1)), r"items\[0\]: need a status True, False or Unk"),
        ({"kind": "Node", "metadata": {"name": 3}}, r"items\[0\]: Expected `str`, got `int`"),
        (node(""), r"items\[0\]: need a node with a name, was none"),
        ({"kind": "Event", "reason": "x"}, r"items\[0\]: need an event with a time, was none"),
    ],
)
def test_an_object_that_cannot_be_is_named_and_nothing_is_written(tmp_path, thing, message):
    with pytest.raises(TraceError, match=message):
        imported(tmp_path, thing)
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.json"]
    (tmp_path / "cluster.json").write_text('{"kind": "Node"\n')
    with pytest.raises(TraceError, match=r"cluster\.json:1: need an object of Kubernetes"):
        import_kubernetes(tmp_path / "cluster.json", tmp_path / "out.tltrace")


class TestKubernetes(ImporterContract):
    importer = import_kubernetes

    def write_source(self, folder):
        (folder / "n.json").write_text(json.dumps(node("n1", ("Ready", "False", "x", 1))))
        return folder / "n.json"
