"""The fleet and the job of a synthetic trace."""

from collections.abc import Iterator

from torchloom_core.lab.trace.bundle.schema import Component, Job, Placement
from torchloom_core.lab.trace.synthetic.parameters import START_NS, Parameters

JOB = "job-0"


def node_name(node: int) -> str:
    """Return the id of a node, from 0."""
    return f"node-{node:04d}"


def rack_name(rack: int) -> str:
    """Return the id of a rack, from 0."""
    return f"rack-{rack:03d}"


def switch_name(rack: int) -> str:
    """Return the id of the switch of a rack."""
    return f"switch-{rack:03d}"


def feed_name(feed: int) -> str:
    """Return the id of a power feed, from 0."""
    return f"power-{feed:02d}"


def gpu_name(node: int, gpu: int) -> str:
    """Return the id of one of a node's GPUs, from 0."""
    return f"{node_name(node)}/gpu-{gpu}"


def nic_name(node: int) -> str:
    """Return the id of a node's network card."""
    return f"{node_name(node)}/nic"


def components(parameters: Parameters) -> Iterator[Component]:
    """Yield the topology: power feeds, racks with a switch each, nodes, their GPUs and NIC."""
    for feed in range(parameters.feed_count):
        yield Component(id=feed_name(feed), kind="power")
    for rack in range(parameters.rack_count):
        feed_id = feed_name(rack // parameters.racks_per_feed)
        yield Component(id=rack_name(rack), kind="rack", parents=(feed_id,))
        yield Component(id=switch_name(rack), kind="switch", parents=(rack_name(rack),))
    for node in range(parameters.nodes):
        rack, name = parameters.rack_of(node), node_name(node)
        parents = (rack_name(rack), switch_name(rack))
        yield Component(id=name, kind="node", parents=parents, gpus=parameters.gpus_per_node)
        for gpu in range(parameters.gpus_per_node):
            yield Component(id=gpu_name(node, gpu), kind="gpu", parents=(name,), gpus=1)
        yield Component(id=nic_name(node), kind="nic", parents=(name,))


def job_rows(parameters: Parameters) -> Iterator[Job | Placement]:
    """Yield the job, which runs beyond the trace, and one replica group per node."""
    nodes = parameters.job_nodes
    if not nodes:
        return
    yield Job(
        id=JOB,
        start_ns=START_NS,
        censored=True,
        groups=len(nodes),
        gpus_per_node=parameters.gpus_per_node,
        step_s=10.0,
        checkpoint_s=30.0,
        restart_s=120.0,
    )
    for node in nodes:
        yield Placement(
            job=JOB, group=f"g{node}", rank=0, component=node_name(node), from_ns=START_NS
        )
