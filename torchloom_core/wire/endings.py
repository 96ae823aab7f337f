"""How a worker's process ended: whether that was intended, and in words."""

import signal

_INTERRUPTED = (-signal.SIGINT, 128 + signal.SIGINT)
_TERMINATED = (-signal.SIGTERM, 128 + signal.SIGTERM)

INTENDED = frozenset({"drained", "finished", "interrupted", "terminated"})
"""The words for intended ends."""


def is_intended(status: int | None, *, parted: bool, error: str) -> bool:
    """Return whether an end was intended: the loop is over, or a signal requested it.

    Parameters
    ----------
    status : int, optional
        The exit code, or minus the signal number; None if unknown.
    parted : bool
        Whether the interpreter reached its normal end.
    error : str
        The uncaught exception, or empty.
    """
    if error:
        return False
    return parted if status is None else status in (0, *_INTERRUPTED, *_TERMINATED)


def is_own_end(status: int | None, *, expected: bool) -> bool:
    """Return whether the run ended by itself or by Ctrl-C; SIGTERM may precede a restart."""
    return expected and status in (0, None, *_INTERRUPTED)


def in_a_word(status: int | None, *, expected: bool, error: str = "") -> str:
    """Return how a process ended as one word of a table.

    Examples
    --------
    >>> in_a_word(0, expected=True), in_a_word(-9, expected=False), in_a_word(1, expected=False)
    ('finished', 'killed', 'failed')
    """
    if expected and status in (0, None):
        return "finished"
    if status is None and not error:
        return "gone"
    if status in _INTERRUPTED:
        return "interrupted"
    if status in _TERMINATED:
        return "terminated"
    return "killed" if status is not None and status < 0 else "failed"


def in_words(status: int | None, *, expected: bool, step: int = -1, error: str = "") -> str:
    """Return the end of a process in words, to follow its name.

    Examples
    --------
    >>> in_words(0, expected=True, step=40)
    'finished after step 40'
    >>> in_words(-9, expected=False)
    'was killed by SIGKILL before its first step'
    """
    when = f"after step {step}" if step >= 0 else "before its first step"
    return f"{_how(status, expected=expected, error=error)} {when}{f': {error}' if error else ''}"


def _how(status: int | None, *, expected: bool, error: str) -> str:
    if expected and status in (0, None):
        return "finished"
    if status is None and error:  # the process itself may continue
        return "ended by an error"
    if status is None:
        return "ended with unknown status (its parent reaped it)"
    if status in _INTERRUPTED:
        return "was interrupted"
    if status in _TERMINATED:
        return "was ended by SIGTERM"
    if status < 0:
        return f"was killed by {_signal_name(-status)}"
    return f"ended with status {status}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
