"""The times of layers, as workers have measured them."""

from torchloom_core.wire.generations import Beat, Stopped


def measured(message: Stopped | Beat, known: tuple[float, ...]) -> tuple[float, ...]:
    """Return the seconds of each layer, where a worker has measured some anew."""
    if not known:
        return message.layer_s
    if len(message.layer_s) != len(known):
        return known
    return tuple(new or old for new, old in zip(message.layer_s, known, strict=True))
