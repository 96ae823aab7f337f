"""The chart's servers, Weavers and join.json work together, as processes on loopback."""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from tests.deadlines import DEADLINE_S
from tests.nats_servers import free_ports
from tests.waiting import until
from torchloom_core.cli.deploy_command import deploy
from torchloom_core.live.transport.broker.binary import find_server

pytestmark = [pytest.mark.integration, pytest.mark.long]

TORCHLOOM = Path(sys.executable).with_name("torchloom")
HOST = re.compile(r"loom-nats-(\d)\.loom-nats\.default\.svc:(\d+)")
TRAINER = """
import time
from torchloom_threadlet import attach
loom = attach()
while loom.step():
    time.sleep(0.05)
"""


def rendered(folder):
    deploy("helm", to=folder)
    command = ["helm", "template", "loom", folder / "torchloom", "--set", "nats.password=abc"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [one for one in yaml.safe_load_all(text) if one]


def find(objects, kind, name):
    return next(o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name)


def test_the_charts_parts_work_together_and_a_standby_takes_over(tmp_path):
    if shutil.which("helm") is None:
        pytest.skip("helm is not installed")
    objects = rendered(tmp_path)
    ports = iter(free_ports(6))
    port_of = {(str(n), kind): next(ports) for n in range(3) for kind in ("4222", "6222")}

    def local(text):
        return HOST.sub(lambda found: f"127.0.0.1:{port_of[found.groups()]}", text)

    config = local(find(objects, "ConfigMap", "loom")["data"]["nats.conf"])
    toml = find(objects, "ConfigMap", "loom")["data"]["torchloom.toml"]
    join = local(find(objects, "Secret", "loom-nats")["stringData"]["join.json"])
    (tmp_path / "join.json").write_text(join)
    weaver = find(objects, "StatefulSet", "loom-weaver")["spec"]["template"]["spec"]
    container = weaver["containers"][0]
    url = next(one["value"] for one in container["env"] if one["name"] == "NATS_URL")
    url = local(url.replace("$(NATS_PASSWORD)", "abc"))

    servers = find(objects, "StatefulSet", "loom-nats")["spec"]["template"]["spec"]
    settings = servers["containers"][0]["env"]
    routes = next(one["value"] for one in settings if one["name"] == "NATS_ROUTES")
    shared = {"NATS_PASSWORD": "abc"}
    shared["NATS_ROUTES"] = local(routes.replace("$(NATS_PASSWORD)", "abc"))

    with ExitStack() as stack:

        def start(*command, **variables):
            log = stack.enter_context((tmp_path / "log").open("a"))
            environment = os.environ | variables
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        for number in "012":
            own = config.replace("http: 0.0.0.0:8222", "http: 127.0.0.1:-1")
            own = own.replace("/data", str(tmp_path / f"data{number}"))
            own = own.replace("port: 4222", f"port: {port_of[number, '4222']}")
            own = own.replace("0.0.0.0:6222", f"127.0.0.1:{port_of[number, '6222']}")
            path = tmp_path / f"nats-{number}.conf"
            path.write_text(own)
            start(find_server(), "-c", path, POD_NAME=f"loom-nats-{number}", **shared)
        weavers = {}
        for number in range(2):
            path = tmp_path / f"weaver-{number}.toml"
            own = toml.replace("/srv/run", str(tmp_path / f"weaver-{number}"))
            path.write_text(own.replace("0.0.0.0:29513", "127.0.0.1:0"))
            words = [
                word.replace("/etc/torchloom/torchloom.toml", str(path))
                for word in container["args"]
            ]
            weavers[number] = start(TORCHLOOM, *words, NATS_URL=url)
        start(sys.executable, "-c", TRAINER, TORCHLOOM_JOIN=str(tmp_path / "join.json"))

        def trains_under():
            command = [TORCHLOOM, "status", "--json", "--url", url]
            shown = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
            if shown.returncode:
                return None
            status = json.loads(shown.stdout)
            states = [worker["state"] for worker in status["workers"]]
            return status if states == ["training"] else None

        first = until(trains_under)
        leader = next(n for n in weavers if f"weaver-{n}/" in first["trajectory"])
        weavers[leader].kill()

        def replaced():
            status = trains_under()
            return status and status["epoch"] > first["epoch"]

        assert until(replaced)
