"""Nodes that are off by their benchmark results are listed, and cordoned on request."""

import json

import pytest

from torchloom_core.capabilities.gate.superbench import findings, read_baseline, read_results
from torchloom_core.floor.errors import ConfigError

USUAL = {
    "kernel-launch/return_code": 0,
    "kernel-launch/event_overhead:0": 0.006,
    "gemm-flops/FP64:0": 9000.0,
    "nccl-bw/allreduce_8388608_time:0": 500.0,
}


def write(path, **nodes):
    lines = [json.dumps({"node": node, **USUAL, **changed}) for node, changed in nodes.items()]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def found(path, **options):
    return [(one.node, one.text) for one in findings(read_results(path), **options)]


def test_only_a_worse_value_beyond_share_and_floor_is_off(tmp_path):
    path = write(
        tmp_path / "r.jsonl",
        a={"gemm-flops/FP64:0": 8000.0},
        b={"gemm-flops/FP64:0": 9900.0, "nccl-bw/allreduce_8388608_time:0": 700.0},
        c={"kernel-launch/event_overhead:0": 0.012},
        d={"kernel-launch/event_overhead:0": 0.1},
        e={"kernel-launch/return_code": 7, "gemm-flops/FP64:0": float("nan")},
    )
    assert found(path) == [
        ("a", "gemm-flops/FP64:0 8000, baseline 9000 (-11.1%)"),
        ("b", "nccl-bw/allreduce_8388608_time:0 700, baseline 500 (+40.0%)"),
        ("d", "kernel-launch/event_overhead:0 0.1, baseline 0.006 (+1566.7%)"),
        ("e", "kernel-launch/return_code 7: failed"),
        ("e", "gemm-flops/FP64:0 nan: not finite"),
    ]
    assert [node for node, _ in found(path, floors={"kernel-*/*": 0.0})].count("c") == 1
    assert [node for node, _ in found(path, share=0.5)] == ["d", "e", "e"]


def test_a_baseline_needs_no_ranks_and_two_nodes_give_no_median(tmp_path):
    path = write(tmp_path / "r.jsonl", a={}, b={"gemm-flops/FP64:0": 100.0})
    assert found(path) == []
    assert [node for node, _ in found(path, baseline={"gemm-flops/FP64": 9000.0})] == ["b"]


def test_a_node_that_lacks_what_the_baseline_has_is_off(tmp_path):
    (tmp_path / "r.jsonl").write_text('{"node": "spare", "other/x_time": 1}')
    (tmp_path / "b.json").write_text('{"a/x_time": 1, "a/y_bw": 5, "b/z_bw": 2}')
    assert found(tmp_path / "r.jsonl", baseline=read_baseline(tmp_path / "b.json")) == [
        ("spare", "a: 2 metrics missing"),
        ("spare", "b: 1 metrics missing"),
    ]
    (tmp_path / "b.json").write_text('{"a/x_time": NaN}')
    with pytest.raises(ConfigError, match="need a finite 'a/x_time', was nan"):
        read_baseline(tmp_path / "b.json")


def test_metrics_that_most_nodes_have_are_missing_on_the_others(tmp_path):
    path = write(tmp_path / "r.jsonl", a={}, b={})
    with path.open("a") as file:
        file.write('{"node": "c", "gemm-flops/FP64:0": 9000.0, "kernel-launch/return_code": 0}\n')
    assert found(path) == [
        ("c", "kernel-launch: 1 metrics missing"),
        ("c", "nccl-bw: 1 metrics missing"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"r\.jsonl: need the results of a node, was none"),
        ('{"node": "a"}\n{"node": "a"}', r"r\.jsonl:2: need one line per node, was a second one"),
        ('{"node": 3}', r"r\.jsonl:1: need a node with a name, was 3"),
        ("[1]", r"r\.jsonl:1: need a JSON object, was \[1\]"),
        ("{", r"r\.jsonl:1: need JSON: "),
        ('{"node": "a", "x": "1"}', r"r\.jsonl:1: need a number for 'x', was '1'"),
        ("[" * 100_000, r"r\.jsonl:1: need JSON: "),
    ],
)
def test_a_line_that_cannot_be_read_is_named(tmp_path, text, message):
    (tmp_path / "r.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_results(tmp_path / "r.jsonl")


@pytest.mark.integration
def test_a_node_that_is_off_is_cordoned_with_its_numbers(run, weaver):
    write(run.path / "r.jsonl", n1={}, n2={}, n3={"gemm-flops/FP64:0": 8000.0})
    assert run.torchloom("gate", "r.jsonl").returncode == 1
    assert weaver.requests == []
    result = run.torchloom("gate", "r.jsonl", "--cordon", "--for", "2d")
    assert (result.returncode, result.stderr) == (1, "")
    assert "nodes that are off: 1 of 3" in result.stdout
    text = "benchmark: gemm-flops/FP64:0 8000, baseline 9000 (-11.1%)"
    assert [body["action"] for _, body in weaver.requests] == [
        {"kind": "cordon", "node": "n3", "lasts_s": 172_800.0, "reason": text}
    ]


@pytest.mark.integration
@pytest.mark.long
def test_a_refused_cordon_names_its_node_and_the_others_go_on(run, weaver):
    weaver.result = "denied"
    off = {"kernel-launch/return_code": 1}
    write(run.path / "r.jsonl", n1=off, n2=off, n3={"kernel-launch/return_code": 0})
    result = run.torchloom("gate", "r.jsonl", "--cordon")
    assert "n1: denied by cooldown" in result.stderr
    assert "n2: denied by cooldown" in result.stderr
    assert "--floor: need PATTERN=VALUE" in run.torchloom("gate", "r.jsonl", "--floor", "x").stderr
