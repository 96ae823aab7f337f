"""int8's kernels: their bits, in Triton's interpreter and on a GPU, and that they compile."""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given

from tests.threadlet.kernels_as_torch import BLOCK, OnGpu, assert_same_as_torchs, rows_of_numbers
from torchloom_threadlet.compression.quantizers import Int8

KERNELS = "torchloom_threadlet.compression.int8_kernels"
pytest.importorskip("triton", reason="Triton is not installed")


def run(*arguments, **environment):
    ran = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.integration
def test_the_kernels_give_the_bits_of_torchs_operations():
    run("-m", "tests.threadlet.kernels_as_torch", TRITON_INTERPRET="1")


COMPILE = f"""
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from {KERNELS} import _BLOCKS_A_PROGRAM, _OPTIONS, _decode, _encode

KINDS = {{"numbers": "*fp32", "scales": "*fp32", "narrow": "*i8", "blocks": "i32"}}
SIZES = {{"BLOCK": {BLOCK}, "BLOCKS": _BLOCKS_A_PROGRAM}}
for kernel in (_encode, _decode):
    kinds = {{name: KINDS.get(name, "constexpr") for name in kernel.arg_names}}
    source = ASTSource(kernel, kinds, constexprs=SIZES)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=_OPTIONS)
    assert compiled.asm["cubin"]
"""


@pytest.mark.integration
def test_the_kernels_compile_for_a_hopper_gpu(tmp_path):
    run("-c", COMPILE, TRITON_CACHE_DIR=str(tmp_path))


def test_where_they_do_not_compile_int8_is_coded_by_torchs_operations_and_says_so_once(
    monkeypatch, caplog
):
    monkeypatch.setitem(sys.modules, KERNELS, None)
    int8, rows = Int8(), torch.randn(2, BLOCK)
    expected = int8.encode(rows)
    for _ in range(2):
        assert torch.equal(int8.encode(rows.as_subclass(OnGpu)), expected)
    assert torch.equal(int8.decode(expected.as_subclass(OnGpu)), int8.decode(expected))
    (message,) = caplog.messages
    assert message.startswith("int8 is coded by torch's operations, which take longer: ")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@given(rows=rows_of_numbers())
def test_on_a_gpu_the_kernels_give_the_bits_of_torchs_operations(rows):
    assert_same_as_torchs(rows, lambda tensor: tensor.to("cuda"))
