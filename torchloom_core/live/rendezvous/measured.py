"""What a program's layers cost: as its workers have measured, all alike until then."""

from torchloom_core.assignments.price import Program
from torchloom_core.wire.generations import Join, Stopped


def measured(stopped: Stopped, known: tuple[float, ...]) -> tuple[float, ...]:
    """Return the seconds of each layer, where a worker has measured some anew."""
    if not known:
        return stopped.layer_s
    if len(stopped.layer_s) != len(known):
        return known
    return tuple(new or old for new, old in zip(stopped.layer_s, known, strict=True))


def costs(program: Join, layer_s: tuple[float, ...]) -> Program:
    """Return the program's costs; without a time of each layer, one second for each."""
    is_known = len(layer_s) == program.layers and all(layer_s)
    return Program(
        layer_s=layer_s if is_known else (1.0,) * program.layers,
        layer_bytes=program.layer_bytes or (0,) * program.layers,
        micro_batches=program.micro_batches,
    )
