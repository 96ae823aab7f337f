"""Models as safetensors, as Hugging Face's libraries read them: ``checkpoint export``."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from torchloom_core.checkpoints.stored import Checkpoint
from torchloom_core.floor.errors import CheckpointError
from torchloom_threadlet.checkpoint.exports.content import Content

_LARGEST_FILE = 4 << 30


def export(
    checkpoint: Checkpoint,
    folder: Path,
    read: Callable[[int], None],
    largest: int = _LARGEST_FILE,
) -> None:
    """Write ``model.safetensors``, or several files and their index, for each model.

    Parameters
    ----------
    checkpoint : Checkpoint
        What is exported.
    folder : Path
        An empty folder.
    read : callable
        Takes the bytes of each piece that was read.
    largest : int
        The bytes of tensors in a file, unless one tensor has more; as much memory is needed.

    Raises
    ------
    CheckpointError
        If the checkpoint has no model, is damaged, or the format cannot hold a tensor.
    """
    content = Content(checkpoint, read)
    for model in content.kinds("model"):
        state = content.values[model]
        tensors = {name: one for name, one in state.items() if isinstance(one, Tensor)}
        files = list(_in_files(tensors, largest))
        of_tensor = {}
        for number, names in enumerate(files, 1):
            part = "" if len(files) == 1 else f"-{number:05d}-of-{len(files):05d}"
            file = f"{model}{part}.safetensors"
            whole = {name: content.whole(tensors[name]) for name in names}
            metadata = {"format": "pt", "step": str(checkpoint.manifest.step)}
            try:
                save_file(whole, folder / file, metadata)
            except (SafetensorError, KeyError, ValueError) as error:
                raise CheckpointError(f"{file}: {error}") from None
            of_tensor.update(dict.fromkeys(names, file))
        if len(files) > 1:
            size = sum(map(_bytes, tensors.values()))
            index = {"metadata": {"total_size": size}, "weight_map": of_tensor}
            (folder / f"{model}.safetensors.index.json").write_bytes(msgspec.json.encode(index))


def _in_files(tensors: Mapping[str, Tensor], largest: int) -> Iterator[list[str]]:
    """Yield the names of the tensors of each file."""
    names: list[str] = []
    size = 0
    for name, tensor in tensors.items():
        if names and size + _bytes(tensor) > largest:
            yield names
            names, size = [], 0
        names.append(name)
        size += _bytes(tensor)
    yield names


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
