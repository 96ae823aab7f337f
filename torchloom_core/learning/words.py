"""Spans of time and counts as a person says them."""


def in_words(seconds: float) -> str:
    """Return a span of time as a person says it.

    Examples
    --------
    >>> from torchloom_core.learning import in_words
    >>> in_words(604800.0), in_words(5400.0), in_words(45.0), in_words(432000000.0)
    ('7 d', '1.5 h', '45 s', '5000 d')
    """
    for unit, least_s in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= least_s:
            return f"{float(f'{seconds / least_s:.3g}'):g} {unit}"
    return f"{seconds:.3g} s"


def faults_in_words(faults: float, memory_s: float) -> str:
    """Return how many faults there were.

    Examples
    --------
    >>> from torchloom_core.learning import faults_in_words
    >>> faults_in_words(1.0, 86_400.0)
    '1 fault in the last 1 d'
    """
    return f"{faults:.0f} fault{'' if faults == 1 else 's'} in the last {in_words(memory_s)}"
