"""Play many runs at once: on the cores of this machine, or on those of a Ray cluster."""

import logging
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Literal, Protocol, TypeVar

import msgspec

from torchloom_core.errors import ConfigError, WorkerLost

Backend = Literal["loky", "ray"]

_ROUND = 4
"""Runs a core in one round on Ray, whose joblib backend hands nothing out before the end."""

_ORPHANED_S = 1.0
"""How long a process that plays runs may outlive the one that started it."""


Played = TypeVar("Played")
_Played_co = TypeVar("_Played_co", covariant=True)


class StudyTask(Protocol[_Played_co]):
    """One run that is to be played, as it is sent to whoever plays it."""

    @property
    def seed(self) -> int:
        """Which draw it is played under."""

    @property
    def arm_name(self) -> str:
        """Which arm is played."""

    @property
    def key(self) -> str:
        """A hash of everything that the run depends on."""

    def play(self) -> _Played_co:
        """Play it."""


class Workforce(msgspec.Struct, frozen=True, kw_only=True):
    """Who plays the runs.

    Attributes
    ----------
    jobs : int
        Processes at once; -1: one a core.
    ray_address : str
        Of a cluster that runs; "": one on this machine is started. The trace must be at the
        same path everywhere.
    """

    jobs: int = 1
    backend: Backend = "loky"
    ray_address: str = ""

    def __post_init__(self) -> None:
        if self.jobs < 1 and self.jobs != -1:
            raise ConfigError(f"--jobs: need at least 1, or -1, was {self.jobs}")

    def play(
        self, study_tasks: Sequence[StudyTask[Played]]
    ) -> Iterator[tuple[StudyTask[Played], Played]]:
        """Yield every run as soon as it is over, in whatever order.

        They go out seed by seed: a process draws an episode once for all arms, and after the first
        seed every arm has shown how long it takes.

        Raises
        ------
        WorkerLost
            If a process of this machine dies.
        """
        import joblib

        study_tasks = sorted(study_tasks, key=lambda study_task: study_task.seed)
        if self.backend == "loky":
            # One that has grown ends between two runs, and another takes its place.
            warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
            # Whoever interrupts is told by us what is kept.
            warnings.filterwarnings("ignore", r"\d+ tasks (have been|which were)", UserWarning)
            work = joblib.Parallel(
                n_jobs=self.jobs,
                return_as="generator_unordered",
                initializer=_begin,
                initargs=(os.getpid(),),
            )
            with _untold_of(signal.SIGHUP):  # whoever tidies up after us ignores the others itself
                runs = work(joblib.delayed(_play)(study_task) for study_task in study_tasks)
            try:
                yield from runs
            except BrokenProcessPool:
                raise WorkerLost("a worker process died: killed, or out of memory") from None
            return
        jobs = self._join_ray()
        for start in range(0, len(study_tasks), _ROUND * jobs):
            with joblib.parallel_config(backend="ray", n_jobs=jobs):
                work = joblib.Parallel()
                part = study_tasks[start : start + _ROUND * jobs]
                yield from work(joblib.delayed(_play)(study_task) for study_task in part)

    def _join_ray(self) -> int:
        """Join the cluster, or start one; return how many processes to use."""
        import ray
        from ray.util.joblib import register_ray

        if not ray.is_initialized():
            ray.init(
                address=self.ray_address or None,
                num_cpus=self.jobs if self.jobs > 0 and not self.ray_address else None,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.WARNING,
            )
        register_ray()
        return self.jobs if self.jobs > 0 else int(ray.cluster_resources()["CPU"])


@contextmanager
def _untold_of(number: signal.Signals) -> Iterator[None]:
    """Keep a signal that comes meanwhile until later, and for ever from processes that start."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})


def _begin(parent: int) -> None:
    """Let whoever started this process end it: a terminal interrupts both."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=[parent], daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process once the one that started it was killed, which tells it nothing."""
    while os.getppid() == parent:
        time.sleep(_ORPHANED_S)
    os._exit(1)


def _play(study_task: StudyTask[Played]) -> tuple[StudyTask[Played], Played]:
    return study_task, study_task.play()
