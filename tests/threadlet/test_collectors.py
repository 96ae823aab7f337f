"""A sidecar's measurements, on the real host and on a stub of NVIDIA's library."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.installing import install
from tests.waiting import eventually
from torchloom_core.testing import CollectorContract
from torchloom_threadlet.sidecar.collectors import Collection
from torchloom_threadlet.sidecar.collectors.process import ProcessCollector
from torchloom_threadlet.sidecar.collectors.prometheus import TextfileCollector

HERE = Path(__file__).parent
COLLECT = """
import json
from torchloom_threadlet.sidecar.collectors.nvml import NvmlCollector
collector = NvmlCollector.find(0, 'n1')
print(json.dumps(collector and [collector.collect(), collector.collect()]))
"""


@pytest.fixture(scope="module")
def nvml_folder(tmp_path_factory):
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to build the stub of NVML")
    folder = tmp_path_factory.mktemp("nvml")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, HERE / "fake_nvml.c"], check=True)
    return folder


def collect(folder, readings, script=COLLECT, **environment):
    source = folder / "readings"
    source.write_text(readings)
    fake = {"LD_LIBRARY_PATH": str(folder), "FAKE_NVML": str(source)}
    result = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | fake | environment,
        capture_output=True,
        check=True,
    )
    return json.loads(result.stdout)


@pytest.mark.integration
def test_gpu_readings_have_the_units_of_their_metric_names(nvml_folder):
    readings = "temp0 61\nmilliwatts0 312500\nutil0 97\nmem0 1024\ncorrected0 3\nuncorrected0 1\n"
    first, _ = collect(nvml_folder, readings)
    assert first == {
        "gpu_temp_celsius": 61.0,
        "gpu_power_watts": 312.5,
        "gpu_util_ratio": 0.97,
        "gpu_mem_used_bytes": 1024.0,
        "gpu_ecc_corrected_total": 3.0,
        "gpu_ecc_uncorrected_total": 1.0,
        "gpu_xid_total": 0.0,
    }


@pytest.mark.integration
def test_each_rank_reads_its_own_gpu_without_unsupported_metrics(nvml_folder):
    readings = "temp0 61\ntemp1 70\n"
    first, second = collect(nvml_folder, readings, LOCAL_RANK="1")
    assert first == second == {"gpu_temp_celsius": 70.0, "gpu_xid_total": 0.0}
    masked, _ = collect(nvml_folder, readings, LOCAL_RANK="0", CUDA_VISIBLE_DEVICES="1,0")
    assert masked["gpu_temp_celsius"] == 70.0


@pytest.mark.integration
def test_an_xid_is_counted_once(nvml_folder):
    first, second = collect(nvml_folder, "temp0 61\nxid0 79\n")
    assert first == second
    assert (first["gpu_xid_total"], first["gpu_xid_last"]) == (1.0, 79.0)


@pytest.mark.integration
def test_a_missing_gpu_is_no_error(nvml_folder):
    assert collect(nvml_folder, "", LOCAL_RANK="5") is None


def test_a_process_and_its_host_are_measured():
    metrics = ProcessCollector.find(os.getpid(), "n1").collect()
    assert metrics["rss_bytes"] > 1e6
    assert metrics["host_mem_available_bytes"] > 0
    assert metrics["cpu_percent"] >= 0


class TestProcess(CollectorContract):
    find = ProcessCollector.find


class TestTextfile(CollectorContract):
    find = TextfileCollector.find

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path, monkeypatch):
        (tmp_path / "node.prom").write_text("link_flaps_total 4\n")
        monkeypatch.setenv("TORCHLOOM_TEXTFILE", str(tmp_path / "node.prom"))


def test_a_textfile_yields_samples_of_this_node_only(tmp_path, caplog):
    path = tmp_path / "node.prom"
    path.write_text(
        "# TYPE node_temp_celsius gauge\n"
        'node_temp_celsius{node="n1"} 71.5\n'
        'node_temp_celsius{node="n2"} 20\n'
        "# TYPE link_flaps_total counter\n"
        "link_flaps_total 4\n"
    )
    collector = TextfileCollector.find(0, "n1", {"TORCHLOOM_TEXTFILE": str(path)})
    assert collector.collect() == {"node_temp_celsius": 71.5, "link_flaps_total": 4.0}
    path.write_text("half a li")
    assert collector.collect() == {}
    assert not caplog.messages
    path.unlink()
    assert collector.collect() == collector.collect() == {}
    assert [message.partition(": ")[2][:14] for message in caplog.messages] == ["cannot be read"]


def of_gpu(metric, gpu, value, **labels):
    uuid = f"GPU-0000000{gpu}-d9cf-fef3-62e9-d92044ab6e52"
    own = {"gpu": gpu, "UUID": uuid, "pci_bus_id": f"00000000:0{gpu}:00.0"}
    own |= {
        "device": f"nvidia{gpu}",
        "modelName": "NVIDIA H100 80GB HBM3",
        "Hostname": "host-a",
    }
    text = ",".join(f'{label}="{of}"' for label, of in (own | labels).items())
    return f"{metric}{{{text}}} {value}\n"


def dcgm_dump():
    """Return the output of DCGM exporter on a host with two GPUs, and of node exporter."""
    lines = "# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n"
    lines += of_gpu("DCGM_FI_DEV_GPU_TEMP", 0, 40) + of_gpu("DCGM_FI_DEV_GPU_TEMP", 1, 71)
    lines += "# TYPE DCGM_FI_DEV_PCIE_REPLAY_COUNTER counter\n"
    lines += of_gpu("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 1, 3, pod="trainer-1")
    lines += of_gpu("DCGM_FI_DEV_MEMORY_TEMP", 1, 9223372036854775794)
    lines += of_gpu("DCGM_FI_DEV_ROW_REMAP_FAILURE", 1, 2147483632)
    lines += of_gpu("DCGM_FI_PROF_SM_ACTIVE", 1, "140737488355330.0")
    lines += of_gpu("DCGM_FI_DEV_XID_ERRORS", 0, 79)
    lines += "# TYPE node_cpu_seconds_total counter\n"
    lines += "".join(f'node_cpu_seconds_total{{cpu="{n}",mode="idle"}} 9\n' for n in range(12))
    lines += 'node_load1{instance="host-a:9100"} 2.5\n'
    return lines + "node_memory_MemFree_bytes 2147483632\n"


@pytest.mark.parametrize(
    ("environment", "temperature"),
    [
        ({}, 40.0),
        ({"LOCAL_RANK": "1"}, 71.0),
        ({"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "0"}, 40.0),
        ({"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "1,0"}, 40.0),
        ({"CUDA_VISIBLE_DEVICES": "GPU-00000001"}, 71.0),
        ({"CUDA_VISIBLE_DEVICES": ""}, None),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, None),
    ],
)
def test_the_workers_gpu_series_follow_from_cudas_environment(tmp_path, environment, temperature):
    path = tmp_path / "dcgm.prom"
    path.write_text(dcgm_dump())
    collector = TextfileCollector.find(0, "n1", {"TORCHLOOM_TEXTFILE": str(path)} | environment)
    assert collector.collect().get("DCGM_FI_DEV_GPU_TEMP") == temperature


def test_on_a_partitioned_gpu_the_workers_instance_is_read(tmp_path):
    path = tmp_path / "dcgm.prom"
    text = of_gpu("DCGM_FI_DEV_GPU_TEMP", 1, 71) + of_gpu("DCGM_FI_DEV_FB_USED", 1, 900)
    for instance, used in ((7, 11), (9, 22)):
        labels = {"GPU_I_PROFILE": "1g.10gb", "GPU_I_ID": instance}
        text += of_gpu("DCGM_FI_DEV_FB_USED", 1, used, **labels)
    path.write_text(text)
    device = "MIG-GPU-00000001-d9cf-fef3-62e9-d92044ab6e52/9/0"
    environment = {"TORCHLOOM_TEXTFILE": str(path), "CUDA_VISIBLE_DEVICES": device}
    collector = TextfileCollector.find(0, "n1", environment)
    assert collector.collect() == {"DCGM_FI_DEV_GPU_TEMP": 71.0, "DCGM_FI_DEV_FB_USED": 22.0}


@pytest.mark.integration
def test_in_a_container_nvml_identifies_the_workers_gpu_on_the_host(nvml_folder, tmp_path):
    path = tmp_path / "dcgm.prom"
    uuid = "GPU-00000000-d9cf-fef3-62e9-d92044ab6e52"
    temp = "DCGM_FI_DEV_GPU_TEMP"
    path.write_text(of_gpu(temp, 0, 20, UUID="GPU-ff") + of_gpu(temp, 5, 50, UUID=uuid))
    script = COLLECT.replace("nvml import Nvml", "prometheus import Textfile")
    script = script.replace("NvmlCollector", "TextfileCollector")
    first, _ = collect(nvml_folder, "", script, TORCHLOOM_TEXTFILE=str(path))
    assert first == {temp: 50.0}


FOREIGN = """
import sys

class Rack:
    def __init__(self, pid, node):
        self.node = node

    def collect(self):
        return {f"rack temp {self.node}": 31}

class Odd(Rack):
    def collect(self):
        return {"rack": None}

class Broken(Rack):
    def collect(self):
        raise OSError("the driver\\nis gone")

def leave(pid, node):
    sys.exit("no rack")
"""


async def test_collectors_of_any_package_run_and_a_bad_one_is_dropped(
    tmp_path, monkeypatch, caplog
):
    points = {"rack": "Rack", "odd": "Odd", "broken": "Broken", "leaving": "leave", "gone": "Gone"}
    values = {name: f"foreign_collectors:{value}" for name, value in points.items()}
    install(tmp_path, "foreign_collectors", FOREIGN, {"torchloom.collectors": values})
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("TORCHLOOM_COLLECTORS", ", ".join([*points, "nvmll", "process"]))
    collection = Collection(os.getpid(), "n1", 0.01)
    running = asyncio.create_task(collection.run())
    await eventually(lambda: len(collection.gauges()) > 1 and len(caplog.messages) > 5)
    running.cancel()
    assert {"rack_temp_n1", "rss_bytes"} < set(collection.gauges())
    assert sorted(line for line in caplog.messages if line.startswith("collector")) == [
        "collector broken is dropped: OSError: the driver is gone",
        "collector gone is dropped: AttributeError: module 'foreign_collectors' has no attribute "
        "'Gone'",
        "collector leaving is dropped: SystemExit: no rack",
        "collector nvmll is dropped: LookupError: it is not installed; did you mean nvml?",
        "collector odd is dropped: TypeError: float() argument must be a string or a real number, "
        "not 'NoneType'",
    ]
