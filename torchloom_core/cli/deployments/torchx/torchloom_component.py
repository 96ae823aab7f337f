"""A torchx component: a Weaver, and a job of torchrun that it controls.

``torchx run -s local_cwd torchloom_component.py:train --script train.py``
"""

from torchx import specs

_WEAVER = """
mkdir -p "$0" && cat > "$0/torchloom.toml" <<END
[run]
name = "$1"
[weaver]
state_dir = "$0"
[broker]
host = "$2"
port = $3
$4
END
exec torchloom weaver --config "$0/torchloom.toml"
"""


def train(
    *script_args: str,
    script: str,
    run: str = "run",
    state: str = ".torchloom",
    host: str = "127.0.0.1",
    port: int = 24222,
    config: str = "",
    nnodes: int = 1,
    nproc_per_node: int = 2,
    image: str = "",
    cpu: int = 1,
    gpu: int = 0,
    memMB: int = 2048,
) -> specs.AppDef:
    """Train a script with a Weaver.

    Args:
        script_args: arguments of the script
        script: the training script
        run: name of the run
        state: state folder of the Weaver, which all hosts see at this path
        host: address of the Weaver's host
        port: port of its nats-server; torchrun's store has the next
        config: more tables of torchloom.toml
        nnodes: hosts that train
        nproc_per_node: ranks per host
        image: container image with torchloom[server,torch]; local_cwd: none
        cpu: cores per host that trains
        gpu: GPUs per host that trains
        memMB: memory per host that trains
    """
    weaver = specs.Role(
        name="weaver",
        image=image,
        entrypoint="sh",
        args=["-c", _WEAVER, state, run, host, str(port), config],
        resource=specs.Resource(cpu=1, gpu=0, memMB=1024),
        max_retries=10,
        port_map={"nats": port},
    )
    trainer = specs.Role(
        name="trainer",
        image=image,
        entrypoint="python",
        args=[
            "-m",
            "torch.distributed.run",
            "--nnodes",
            str(nnodes),
            "--nproc_per_node",
            str(nproc_per_node),
            "--max-restarts",
            "2",
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            f"{host}:{port + 1}",
            "--rdzv-id",
            run,
            script,
            *script_args,
        ],
        env={
            "TORCHLOOM_JOIN": f"{state}/join.json",
            "TORCHLOOM_JOB": f"torchx-{specs.macros.app_id}",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        },
        num_replicas=nnodes,
        resource=specs.Resource(cpu=cpu, gpu=gpu, memMB=memMB),
    )
    return specs.AppDef(name="torchloom", roles=[weaver, trainer])
