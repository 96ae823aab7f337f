"""A Slurm cluster of two nodes on one machine: the real daemons, in a folder of their own."""

import contextlib
import os
import shutil
import socket
import subprocess

import pytest

from tests.nats_servers import free_ports
from tests.waiting import until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")

_CONFIG = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4
PartitionName=all Nodes=n1,n2 Default=YES State=UP
"""


@contextlib.contextmanager
def slurm_cluster(folder):
    """Run it; give the environment for its commands. Skips the test where it cannot run."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"Slurm is not installed (apt-get install slurm-wlm munge): no {missing[0]}")
    if os.geteuid():
        pytest.skip("slurmd has to be started by root")
    folder.mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    config = folder / "slurm.conf"
    host = socket.gethostname().partition(".")[0]
    config.write_text(_CONFIG.format(folder=folder, host=host, ports=free_ports(3)))
    environment = os.environ | {"SLURM_CONF": str(config)}
    munge = [f"--{name}={folder}/munge.{name}" for name in ("socket", "key", "pid", "log", "seed")]
    options = [one.replace("--key=", "--key-file=") for one in munge]
    for name in ("pid", "log", "seed"):
        options = [one.replace(f"--{name}=", f"--{name}-file=") for one in options]
    with contextlib.ExitStack() as stack:

        def start(*command):
            output = stack.enter_context((folder / f"{command[0]}.log").open("a"))
            process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
            stack.callback(process.wait)
            stack.callback(process.terminate)

        start("munged", "--force", "--foreground", *options)
        until((folder / "munge.socket").exists)
        start("slurmctld", "-D")
        start("slurmd", "-D", "-N", "n1")
        start("slurmd", "-D", "-N", "n2")

        def idle():
            shown = ["sinfo", "--noheader", "--states=idle", "--format=%D"]
            result = subprocess.run(shown, env=environment, capture_output=True, text=True)
            return result.stdout.strip() == "2"

        until(idle)
        yield environment
