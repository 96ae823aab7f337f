"""A script may have another default device or type of new tensors: torchLoom names its own."""

import ast
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._device import _device_constructors

import torchloom_threadlet
from tests.threadlet.torchrun_ranks import Starter
from torchloom_core.checkpoints.storage import LocalFolder
from torchloom_core.checkpoints.stored import complete_folders
from torchloom_core.wire.operations import Drain, SetKnobs
from torchloom_threadlet.device.source import CudaDevice
from torchloom_threadlet.experts.measured import Measured

HERE = Path(__file__).parent
CONSTRUCTORS = {function.__name__ for function in _device_constructors()}
OF_INTEGERS = {"arange", "randint", "randperm"}


def test_every_new_tensor_names_its_device_and_its_type():
    """Scripts of the demos are left out: their tensors are their own."""
    folder, missing, found = Path(torchloom_threadlet.__file__).parent, [], 0
    for path in folder.rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if is_torchs(node)]
        for call in calls if not path.name.startswith("demo_") else ():
            given = {keyword.arg for keyword in call.keywords}
            needed = {"device"} if call.func.attr in OF_INTEGERS else {"device", "dtype"}
            found += 1
            if needed - given:
                missing.append(f"{path.relative_to(folder)}:{call.lineno}: {needed - given}")
    assert not missing
    assert found > 50


def is_torchs(node):
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "torch"
        and node.func.attr in CONSTRUCTORS
    )


def test_the_page_locked_number_is_the_hosts():
    with torch.device("meta"), FakeTensorMode():
        pinned = CudaDevice(torch.device("cuda")).pinned(torch.float32)
    assert pinned.device.type == "cpu"


def test_the_mean_of_whole_numbers_is_not_rounded_to_another_default_type():
    measured, default = Measured(1), torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        for _ in range(100):
            measured.count(torch.tensor([1237]))
            measured.commit()
    finally:
        torch.set_default_dtype(default)
    assert measured.tokens == pytest.approx((1237,))


@pytest.mark.integration
async def test_ranks_with_another_default_device_and_type_vote_save_and_report(
    weaver, join_file, end_with_sidecars, tmp_path
):
    start = Starter(HERE / "torchrun_trainer.py", tmp_path, join_file, ("odd", "lr"))
    places = ("--checkpoints", tmp_path / "saved")
    job = start("--default-device", "meta", "--default-dtype", "bfloat16", *places)
    try:
        await job.admit(weaver)
        acks = await job.offer(weaver, 1, SetKnobs(values={"lr": 0.002, "odd": 7}))
        assert {ack.status for ack in acks} == {"applied"}
        assert len({ack.step for ack in acks}) == 1
        for hello in job.hellos.values():
            await weaver.beat(lambda batch: "grad_norm" in batch.metrics, hello.worker)
        left = await job.offer(weaver, 2, Drain())
        assert {ack.status for ack in left} == {"applied"}
        assert await job.end() == 0
    finally:
        end_with_sidecars(job.process)
    assert [len(job.journal(rank)) for rank in job.ranks] == [left[0].step + 1] * 2
    assert complete_folders(LocalFolder(tmp_path / "saved"))
