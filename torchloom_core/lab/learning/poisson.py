"""The interval of a Poisson count; ``scipy.stats`` takes 60 times as long, and longer to import."""


def poisson_between(count: int) -> tuple[float, float]:
    """Return the exact 95 % interval of the mean of a Poisson count.

    Garwood, "Fiducial limits for the Poisson distribution", Biometrika 28, 1936.

    Examples
    --------
    >>> from torchloom_core.lab.learning.poisson import poisson_between
    >>> [round(bound, 3) for bound in (*poisson_between(0), *poisson_between(10))]
    [0.0, 3.689, 4.795, 18.39]
    """
    from scipy.special import gammaincinv

    low = gammaincinv(count, 0.025) if count else 0.0
    return float(low), float(gammaincinv(count + 1, 0.975))
