"""Find a pickle in bytes that should have none: loading one may run any code."""

import io
import pickletools
import zipfile

_NUMPY = b"\x93NUMPY"
_HEADER_BYTES = 256


def holds_pickle(data: bytes) -> bool:
    """Return whether the bytes are a pickle, or an archive or array that holds one.

    Files of torch, joblib and numpy count as well. Bytes in another encoding, such as base64 in
    JSON, are not searched.

    Examples
    --------
    >>> import pickle
    >>> holds_pickle(pickle.dumps({"weight": 1.0})), holds_pickle(b'{"weight": 1.0}')
    (True, False)
    """
    if data.startswith(_NUMPY):
        return b"'|O'" in data[:_HEADER_BYTES]
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return any(holds_pickle(archive.read(name)) for name in archive.namelist())
    try:
        opcodes = sum(1 for _ in pickletools.genops(data))
    except (ValueError, UnicodeDecodeError, IndexError, OverflowError):
        return False
    return opcodes > 1
