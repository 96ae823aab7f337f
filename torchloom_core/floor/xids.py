"""What an Xid of NVIDIA's driver means for a training process on the GPU.

The importer of kernel logs and the sidecar's reading of NVML use it.

Source: NVIDIA, "Analyzing Xid Errors with the Xid Catalog" (Ampere and newer). Its *immediate
action* decides: where an application or the GPU has to be restarted the process has ended.
"""

from typing import Literal, NamedTuple


class Meaning(NamedTuple):
    """Kind of fault, whether it ends the training process, and what it follows."""

    kind: str
    fatal: bool
    follows: Literal["component", "job", "fabric", "unknown"]


_APPLICATION = {
    11: "invalid_push_buffer",
    13: "graphics_engine_exception",
    25: "illegal_push_buffer",
    31: "memory_page_fault",
    43: "application_fault",
    69: "graphics_class_error",
    80: "corrupted_push_buffer",
}
"""Usually a bug of the application, which must be restarted."""

_HARDWARE = {
    46: "gpu_timeout",
    48: "double_bit_ecc",
    62: "microcontroller_halt",
    64: "row_remap_failure",
    74: "nvlink_error",
    79: "fallen_off_the_bus",
    94: "contained_memory_error",
    95: "uncontained_memory_error",
    109: "context_switch_timeout",
    110: "security_fault",
    119: "gsp_timeout",
    120: "gsp_error",
    136: "link_training_failed",
    140: "unrecovered_ecc",
    143: "gpu_init_error",
    155: "nvlink_software_error",
    158: "gpu_fatal_timeout",
    167: "pcie_fatal_timeout",
    169: "microcontroller_halt",
    171: "uncorrectable_dram",
    172: "uncorrectable_sram",
}
"""The GPU or the node must be reset, or for 94 the application restarted."""

_RESTARTED = frozenset(
    {8, 32, 39, 40, 41, 60, 68, 70, 71, 72, 75, 76, 77, 82, 83, 84, 85, 86, 88, 89, 139, 151}
    | {*range(96, 106), *range(126, 136)}
)
"""The application must be restarted, for a cause that the catalogue leaves open."""

_NVLINK = frozenset(range(144, 151))
"""NVLink of Blackwell: the line itself states ``Fatal`` or ``Nonfatal``."""

_WARNINGS = {
    45: "preemptive_cleanup",
    54: "power_not_connected",
    63: "row_remapped",
    92: "high_single_bit_ecc",
    121: "c2c_corrected",
    137: "nvlink_privilege_error",
    154: "recovery_action_changed",
    156: "resource_retired",
    157: "resource_retirement_failure",
}
"""Training goes on, or, for 45 and 154, another Xid is the fault."""


_SECONDARY = frozenset({45, 154})
"""Follow another Xid, or an interrupt."""


def is_of_gpu(xid: int) -> bool:
    """Return whether an Xid is a fault of its own that is not usually the application's.

    Examples
    --------
    >>> [xid for xid in (31, 45, 48, 63) if is_of_gpu(xid)]
    [48, 63]
    """
    return xid not in _SECONDARY and meaning(xid, "").follows != "job"


def meaning(xid: int, text: str) -> Meaning:
    """Return what an Xid means; ``text`` is the rest of its line.

    Examples
    --------
    >>> meaning(79, "GPU has fallen off the bus.")
    Meaning(kind='fallen_off_the_bus', fatal=True, follows='component')
    >>> meaning(63, "Row Remapper: New row marked for remapping").fatal
    False
    """
    if xid in _APPLICATION:
        return Meaning(_APPLICATION[xid], True, "job")
    if xid in _HARDWARE:
        return Meaning(_HARDWARE[xid], True, "component")
    if xid in _RESTARTED:
        return Meaning("engine_error", True, "unknown")
    if xid in _NVLINK:
        return Meaning("nvlink_error", " Fatal" in text, "component")
    return Meaning(_WARNINGS.get(xid, "other_xid"), False, "component")
