"""How a worker's process ended: whether somebody meant it to, and in words for people."""

import signal

_INTERRUPTED = (-signal.SIGINT, 128 + signal.SIGINT)
_TERMINATED = (-signal.SIGTERM, 128 + signal.SIGTERM)

MEANT = frozenset({"drained", "finished", "interrupted", "terminated"})
"""How an end that was meant is called in a word."""


def is_meant(status: int | None, *, parted: bool, error: str) -> bool:
    """Say whether an end was meant: the loop is over, or somebody asked for it by a signal.

    Parameters
    ----------
    status : int, optional
        The exit code, or minus the signal number; None if nobody knows.
    parted : bool
        Whether the interpreter got as far as its own end.
    error : str
        The exception that nobody caught.
    """
    if error:
        return False
    return parted if status is None else status in (0, *_INTERRUPTED, *_TERMINATED)


def is_of_its_own(status: int | None, *, expected: bool) -> bool:
    """Say whether the run ended by itself or by Ctrl-C: whoever terminates may start it again."""
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
    """Return what to say of a process after its name.

    Examples
    --------
    >>> in_words(0, expected=True, step=40)
    'finished after step 40'
    >>> in_words(-9, expected=False)
    'was killed by SIGKILL before its first step'
    """
    when = f"after step {step}" if step >= 0 else "before its first step"
    return f"{_how(status, expected=expected)} {when}{f': {error}' if error else ''}"


def _how(status: int | None, *, expected: bool) -> str:
    if expected and status in (0, None):
        return "finished"
    if status is None:
        return "ended, nobody knows how (whoever started it took its exit status),"
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
