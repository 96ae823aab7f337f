"""A sidecar's measurements, on the real host and on a stub of NVIDIA's library."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from array import array
from pathlib import Path

import pytest

from tests.installing import install
from tests.waiting import eventually
from torchloom_core.testing import CollectorContract
from torchloom_core.wire.messages import Note
from torchloom_threadlet.sidecar.collectors import Collection
from torchloom_threadlet.sidecar.collectors.process import ProcessCollector
from torchloom_threadlet.sidecar.collectors.prometheus import TextfileCollector

HERE = Path(__file__).parent
COLLECT = """
import json, os, sys
from pathlib import Path
from torchloom_threadlet.sidecar.collectors.nvml import NvmlCollector
source = Path(os.environ['FAKE_NVML'])
collector, later = NvmlCollector.find(0, 'n1'), sys.argv[1:]
samples = collector and [collector.collect()]
for text in later or [source.read_text()]:
    source.write_text(text)
    if collector:
        samples.append(collector.collect())
if later:
    samples.append(collector.faults())
print(json.dumps(samples))
"""


@pytest.fixture(scope="module")
def nvml_folder(tmp_path_factory):
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to build the stub of NVML")
    folder = tmp_path_factory.mktemp("nvml")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, HERE / "fake_nvml.c"], check=True)
    return folder


def collect(folder, readings, script=COLLECT, *, later=(), **environment):
    """Return two samples; or one, one for each later text of readings, and the faults.

    Without an environment the worker is local rank 0.
    """
    environment = environment or {"LOCAL_RANK": "0"}
    source = folder / "readings"
    source.write_text(readings)
    (folder / "readings.calls").unlink(missing_ok=True)
    fake = {"LD_LIBRARY_PATH": str(folder), "FAKE_NVML": str(source)}
    result = subprocess.run(
        [sys.executable, "-c", script, *later],
        env=os.environ | fake | environment,
        capture_output=True,
        check=True,
        text=True,
    )
    (folder / "log").write_text(result.stderr)
    return json.loads(result.stdout)


@pytest.mark.integration
def test_gpu_readings_have_the_units_of_their_metric_names(nvml_folder):
    readings = {
        "temp0": (61, {"gpu_temp_celsius": 61.0}),
        "threshold1_0": (90, {"gpu_temp_slowdown_celsius": 90.0}),
        "threshold0_0": (95, {"gpu_temp_shutdown_celsius": 95.0}),
        "margin0": (29, {"gpu_temp_margin_celsius": 29.0}),
        "milliwatts0": (312500, {"gpu_power_watts": 312.5}),
        "limit0": (700000, {"gpu_power_limit_watts": 700.0}),
        "util0": (97, {"gpu_util_ratio": 0.97, "gpu_mem_util_ratio": 0.5}),
        "mem0": (1024, {"gpu_mem_used_bytes": 1024.0, "gpu_mem_total_bytes": 4096.0}),
        "clock1_0": (1980, {"gpu_sm_clock_hz": 1.98e9}),
        "clock2_0": (2619, {"gpu_mem_clock_hz": 2.619e9}),
        "corrected0": (3, {"gpu_ecc_corrected_total": 3.0}),
        "uncorrected0": (1, {"gpu_ecc_uncorrected_total": 1.0}),
        "ever_corrected0": (5, {"gpu_ecc_lifetime_corrected_total": 5.0}),
        "ever_uncorrected0": (2, {"gpu_ecc_lifetime_uncorrected_total": 2.0}),
        "remap_failed0": (0, {"gpu_row_remap_pending": 0.0, "gpu_row_remap_failed": 0.0}),
        "pcie0_0": (7, {"gpu_pcie_tx_bytes_per_s": 7000.0}),
        "pcie1_0": (8, {"gpu_pcie_rx_bytes_per_s": 8000.0}),
        "field82_0": (88, {"gpu_mem_temp_celsius": 88.0}),
        "field94_0": (4, {"gpu_pcie_replays_total": 4.0}),
        "all_field138_0": (2, {"gpu_nvlink_tx_bytes_total": 2048.0}),
        "all_field139_0": (3, {"gpu_nvlink_rx_bytes_total": 3072.0}),
        "field38_0": (1, {"gpu_nvlink_crc_flit_errors_total": 1.0}),
        "field30_0": (6, {"gpu_pages_retired_uncorrected_total": 6.0}),
        "throttle0": (0x44, {"gpu_throttle_sw_power_cap": 1.0, "gpu_throttle_hw_thermal": 1.0}),
    }
    text = "".join(f"{name} {value}\n" for name, (value, _) in readings.items())
    first, _ = collect(nvml_folder, text)
    expected = {name: value for _, metrics in readings.values() for name, value in metrics.items()}
    assert first.items() >= expected.items()
    others = {name: value for name, value in first.items() if name not in expected}
    assert {name for name, value in others.items() if value} == {
        "gpu_rows_remapped_corrected_total",
        "gpu_rows_remapped_uncorrected_total",
    }
    assert {"gpu_throttle_hw_slowdown", "gpu_xid_total", "gpu_lost"} < others.keys()


@pytest.mark.integration
def test_each_rank_reads_its_own_gpu(nvml_folder):
    readings = "temp0 61\ntemp1 70\n"
    first, second = collect(nvml_folder, readings, LOCAL_RANK="1")
    assert first == second == {"gpu_temp_celsius": 70.0, "gpu_xid_total": 0.0, "gpu_lost": 0.0}
    masked, _ = collect(nvml_folder, readings, LOCAL_RANK="0", CUDA_VISIBLE_DEVICES="1,0")
    assert masked["gpu_temp_celsius"] == 70.0


@pytest.mark.integration
def test_what_is_hidden_is_named_in_one_line_and_not_read_again(nvml_folder):
    text = "temp0 61\nutil0 !4\nmem0 !999\nfield82_0 !2\nevents0 !4\n"
    *samples, faults = collect(nvml_folder, text, later=[text, text, f"{text}mem0 7\nutil0 9\n"])
    assert samples == [{"gpu_temp_celsius": 61.0, "gpu_lost": 0.0}] * 4
    assert not faults
    at_once, after_three = (nvml_folder / "log").read_text().splitlines()
    assert "gpu_xid_total, gpu_util_ratio, gpu_mem_util_ratio (insufficient permiss" in at_once
    assert "gpu_mem_temp_celsius (invalid argument)" in at_once
    assert "gpu_power_watts" in at_once
    assert after_three.endswith("gpu_mem_used_bytes, gpu_mem_total_bytes (unknown error)")
    calls = (nvml_folder / "readings.calls").read_text().splitlines()
    counts = {name: calls.count(name) for name in ("temp0", "util0", "mem0", "field82_0", "limit0")}
    assert counts == {"temp0": 4, "util0": 1, "mem0": 3, "field82_0": 1, "limit0": 1}


@pytest.mark.integration
def test_faults_of_a_gpu_are_reported_once(nvml_folder):
    begin = "temp0 61\nuncorrected0 2\nremap_failed0 0\n"
    worse = "temp0 61\nuncorrected0 5\nremap_failed0 1\nxid0 48\n"
    by_application, lost = worse.replace("xid0 48", "xid0 31"), "temp0 !15\nuncorrected0 !15\n"
    later = [worse, worse, by_application, lost, lost]
    _, second, third, fourth, *ended, faults = collect(nvml_folder, begin, later=later)
    assert second == third
    assert (fourth["gpu_xid_total"], fourth["gpu_xid_last"]) == (2.0, 31.0)
    assert ended == [{"gpu_lost": 1.0}] * 2
    assert [fault["what"] for fault in faults] == [
        "Xid 48: double bit ecc",
        "3 uncorrected ECC errors",
        "row remapping failed",
        "GPU is lost",
    ]
    assert (faults[0]["xid"], faults[0]["gpu"]) == (48, "GPU 0")


@pytest.mark.integration
def test_a_mig_instance_has_its_own_memory_and_xids(nvml_folder):
    text = "temp0 61\nmem0 4000\nmem103 11\nxid0 48\nxid_instance0 "
    expected = {"gpu_temp_celsius": 61.0, "gpu_mem_used_bytes": 11.0}
    for instance, xids in ((3, 1.0), (4, 0.0)):
        first, _ = collect(nvml_folder, f"{text}{instance}\n", CUDA_VISIBLE_DEVICES="MIG-3")
        assert first.items() >= (expected | {"gpu_xid_total": xids}).items()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"LOCAL_RANK": "5"}, "need a local rank below 2, was 5"),
        ({"LOCAL_RANK": "-1", "CUDA_VISIBLE_DEVICES": "0,1"}, "LOCAL_RANK: need a whole number"),
        ({"CUDA_VISIBLE_DEVICES": "4294967296"}, "need a number below 2, was 4294967296"),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, "LOCAL_RANK is not set"),
        ({"SLURM_LOCALID": "0"}, "LOCAL_RANK is not set"),
    ],
)
def test_no_gpu_is_measured_where_the_environment_names_none(nvml_folder, environment, why):
    assert collect(nvml_folder, "temp0 61\ntemp1 70\n", **environment) is None
    (line,) = (nvml_folder / "log").read_text().splitlines()
    assert line.startswith("no GPU is measured until the loom gets a metric, a model or an opt")
    assert why in line


@pytest.mark.integration
def test_a_task_of_srun_reads_its_own_gpu(nvml_folder):
    environment = {"SLURM_LOCALID": "1", "CUDA_VISIBLE_DEVICES": "0,1"}
    first, _ = collect(nvml_folder, "temp0 61\ntemp1 70\n", **environment)
    assert first["gpu_temp_celsius"] == 70.0


@pytest.mark.integration
def test_a_flood_of_unknown_xids_is_counted(nvml_folder):
    _, second, faults = collect(nvml_folder, "temp0 61\n", later=["temp0 61\nxids0 20\n"])
    assert (second["gpu_xid_total"], second["gpu_xid_last"]) == (20.0, 1019.0)
    assert [fault["what"] for fault in faults[3:]] == [
        "Xid 1003: other xid",
        "16 other Xids at the same time",
    ]


@pytest.mark.integration
def test_nvidia_ml_py_is_missed_in_one_line_where_a_driver_is(nvml_folder):
    script = f"import sys; sys.modules['pynvml'] = None{COLLECT}"
    assert collect(nvml_folder, "", script) is None
    line = (nvml_folder / "log").read_text()
    assert line == "GPUs are not measured: nvidia-ml-py is not installed\n"
    assert collect(nvml_folder, "", script, LD_LIBRARY_PATH="") is None
    assert not (nvml_folder / "log").read_text()


def test_psutil_is_missed_in_one_line(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert ProcessCollector.find(os.getpid(), "n1") is None
    assert caplog.messages == ["the trainer's process is not measured: psutil is not installed"]


ON_GPU_1 = """
import sys
from tests.threadlet.fake_device import FakeDevice, OnDevice
from torchloom_threadlet import attach
from torchloom_threadlet.device import source

source.CudaDevice = lambda device: FakeDevice()
loom = attach(group="g0")
sys.stdin.readline()
for _ in range(2):
    loom.step(loss=OnDevice(0.5))
sys.stdin.readline()
loom.close()
"""


def start_on_gpu_1(environment):
    command, env = [sys.executable, "-c", ON_GPU_1], os.environ | environment
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, bufsize=0)


@pytest.mark.integration
@pytest.mark.parametrize(("local_rank", "before"), [({}, None), ({"LOCAL_RANK": "0"}, 61)])
async def test_a_rank_reports_the_gpu_of_its_tensors(
    nvml_folder, tmp_path, weaver, join_file, local_rank, before
):
    """Before it has one, that of its environment; a fault's number may be beyond a message's."""
    readings = tmp_path / "readings"
    readings.write_text(f"temp0 61\ntemp1 70\nxid1 {2**64 - 1}\n")
    environment = {"LD_LIBRARY_PATH": str(nvml_folder), "FAKE_NVML": str(readings)}
    environment |= {"TORCHLOOM_JOIN": str(join_file), "TORCHLOOM_HEARTBEAT_S": "0.1"}
    with start_on_gpu_1(environment | local_rank) as trainer:
        await weaver.beat(temperature_is(before))
        trainer.stdin.write(b"\n")
        await weaver.beat(temperature_is(70))
        fault = await weaver.event(Note, kind="fault")
        trainer.stdin.write(b"\n")
    assert (fault.fields["gpu"], fault.fields["xid"]) == ("GPU 1", str(2**64 - 1))
    assert any(map(temperature_is(61), weaver.telemetry)) == (before == 61)


def temperature_is(celsius):
    def check(batch):
        if "rss_bytes" not in batch.metrics:
            return False
        last = array("d", batch.values)[-len(batch.metrics) :]
        return dict(zip(batch.metrics, last, strict=True)).get("gpu_temp_celsius") == celsius

    return check


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
        ({}, None),
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
    environment = {"LOCAL_RANK": "0", "TORCHLOOM_TEXTFILE": str(path)}
    first, _ = collect(nvml_folder, "", script, **environment)
    assert first == {temp: 50.0}


FOREIGN = """
import sys

class Rack:
    def __init__(self, pid, node):
        self.node = node

    def collect(self):
        return {f"rack temp {self.node}": 31}

    def faults(self):
        return [{"what": f"rack of {self.node} is hot"}]

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
    faults = []
    collection = Collection(os.getpid(), "n1", 0.01, faults.append)
    running = asyncio.create_task(collection.run())
    await eventually(lambda: len(collection.gauges()) > 1 and len(caplog.messages) > 5)
    running.cancel()
    assert {"rack_temp_n1", "rss_bytes"} < set(collection.gauges())
    assert faults[0] == {"what": "rack of n1 is hot"}
    assert sorted(line for line in caplog.messages if line.startswith("collector")) == [
        "collector broken is dropped: OSError: the driver is gone",
        "collector gone is dropped: AttributeError: module 'foreign_collectors' has no attribute "
        "'Gone'",
        "collector leaving is dropped: SystemExit: no rack",
        "collector nvmll is dropped: LookupError: it is not installed; did you mean nvml?",
        "collector odd is dropped: TypeError: float() argument must be a string or a real number, "
        "not 'NoneType'",
    ]
