"""How many files and connections this process may have open."""

import resource

_MOST_FILES = 65_536


def allow_files() -> None:
    """Raise the limit of open files as far as the system allows."""
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if most < 0 else min(_MOST_FILES, most)
    if 0 <= files < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def most_connections(wanted: int) -> int:
    """Return ``wanted``, or less where that would need too many of the files for other uses."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if files < 0 else min(wanted, files // 2)
