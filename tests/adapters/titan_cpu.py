"""Lets torchtitan, written for GPUs, train on CPUs with gloo; imported before torchtitan.

On a machine with a GPU it does nothing but add the data.
"""

import torch
import torch._utils
import torch.cpu
from torch.distributed.fsdp import FSDPModule


class _Properties:
    name, total_memory = "CPU", 1 << 30


if not torch.cuda.is_available():
    torch._utils._get_available_device_type = lambda: "cpu"
    torch.cpu.set_device = lambda *arguments: None
    for name, value in {
        "memory_stats": {},
        "reset_peak_memory_stats": None,
        "empty_cache": None,
        "manual_seed_all": None,
        "get_device_name": "CPU",
        "get_device_properties": _Properties,
    }.items():
        if not hasattr(torch.cpu, name):
            setattr(torch.cpu, name, lambda *arguments, value=value, **named: value)

    import torchtitan.distributed.utils
    import torchtitan.models.llama3
    from torchtitan.models.common.attention import ScaledDotProductAttention

    # FlexAttention has no CPU kernel with gradients, and gloo neither a device barrier ...
    torchtitan.models.llama3.get_attention_config = lambda kind: ScaledDotProductAttention.Config()
    ScaledDotProductAttention.sdpa_backends = [torch.nn.attention.SDPBackend.MATH]
    torchtitan.distributed.utils.set_pg_timeouts = lambda *arguments, **named: None
    divide = FSDPModule.set_gradient_divide_factor

    def divide_after_sum(module, factor):
        module.set_force_sum_reduction_for_comms(True)  # ... nor a sum with a factor
        divide(module, factor)

    FSDPModule.set_gradient_divide_factor = divide_after_sum
